#include "base/time.h"

/* -std=c99 hides the function and its types. A long has 64 bits there, as both members of the time. */
#if !defined(CLOCK_MONOTONIC) && defined(__linux__) && defined(__LP64__)
#define GPUNN__HIDDEN_CLOCK 1 /* CLOCK_MONOTONIC */
int gpunn__clock_gettime(int clock, long now[2]) __asm__("clock_gettime");
#endif

GPUNN__INTERNAL double gpunn__seconds(void)
{
#if defined(_WIN32)
    LARGE_INTEGER ticks, frequency;
    (void)QueryPerformanceCounter(&ticks);
    (void)QueryPerformanceFrequency(&frequency);
    return (double)ticks.QuadPart / (double)frequency.QuadPart;
#elif defined(CLOCK_MONOTONIC)
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#elif defined(GPUNN__HIDDEN_CLOCK)
    long now[2];
    (void)gpunn__clock_gettime(GPUNN__HIDDEN_CLOCK, now);
    return (double)now[0] + 1e-9 * (double)now[1];
#else /* hidden by -std=c99; the calendar can jump */
    struct timeval now;
    (void)gettimeofday(&now, NULL);
    return (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
#endif
}
