/* A library for LD_PRELOAD that shifts a program's time of day by the seconds in the file that
   KUBE_LITE_TEST_CLOCK names; the file may change while the program runs. With
   KUBE_LITE_TEST_CLOCK_TIMERS timers follow, too: the time since boot is shifted as well, and no wait
   for events lasts longer than POLL_MS, so that the program checks its timers. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS 20

static volatile int64_t *off;
static int timers;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("KUBE_LITE_TEST_CLOCK");
    timers = getenv("KUBE_LITE_TEST_CLOCK_TIMERS") != NULL;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *off, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) off = page;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int outcome = (int)syscall(SYS_clock_gettime, clock, time);
    int moves = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ||
                (timers && (clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME));
    if (outcome == 0 && off && moves) time->tv_sec += *off;
    return outcome;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int outcome = (int)syscall(SYS_gettimeofday, time, zone);
    if (outcome == 0 && off && time) time->tv_sec += *off;
    return outcome;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    if (timers && (timeout < 0 || timeout > POLL_MS)) timeout = POLL_MS;
    return (int)syscall(SYS_epoll_pwait, epoll, events, most, timeout, NULL, 0);
}
