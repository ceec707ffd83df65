// The nonewprivs image's program, installed setuid: says whose rights it runs with.
#include <stdio.h>
#include <unistd.h>

int main(void) {
  printf("Effective uid: %d\n", (int)geteuid());
  return 0;
}
