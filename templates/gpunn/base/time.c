#include "base/time.h"

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
#else /* hidden by -std=c99 */
    struct timeval now;
    (void)gettimeofday(&now, NULL);
    return (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
#endif
}
