// The pause image's program: holds a pod's namespaces, ends on a signal, and reaps the orphans of a
// shared process namespace.
#include <signal.h>
#include <sys/wait.h>

int main(void) {
  sigset_t set;
  int which;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, 0);
  while (sigwait(&set, &which) == 0 && which == SIGCHLD)
    while (waitpid(-1, 0, WNOHANG) > 0)
      ;
  return 0;
}
