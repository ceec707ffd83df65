// The nonewprivs image's program, installed setuid: prints its effective user.
#include <stdio.h>
#include <unistd.h>

int main(void) {
  printf("Effective uid: %d\n", (int)geteuid());
  return 0;
}
