// The part of BusyBox's nmeter that specs use and the distribution's BusyBox lacks: the time of day
// with milliseconds (nmeter -d0 %3t), once.
#include <stdio.h>
#include <sys/time.h>

int main(void) {
  struct timeval now;
  gettimeofday(&now, 0);
  long day = now.tv_sec % 86400;
  printf("%02ld:%02ld:%02ld.%03ld\n", day / 3600, day / 60 % 60, day % 60,
         (long)now.tv_usec / 1000);
  return 0;
}
