/* A calendar that jumps, for LD_PRELOAD: each time that a program asks for is an hour after or before the
 * system's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>

static time_t jump(void)
{
    static atomic_uint calls;
    return atomic_fetch_add(&calls, 1) % 2 ? 3600 : -3600;
}
#define REAL(name, ...) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))(__VA_ARGS__)

/* The C library's names of parameters are reserved.
 * NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = REAL(clock_gettime, clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += jump();
    return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    const int result = REAL(gettimeofday, now, zone);
    if (result == 0) now->tv_sec += jump();
    return result;
}
time_t time(time_t *now)
{
    const time_t result = REAL(time, NULL) + jump();
    if (now) *now = result;
    return result;
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
