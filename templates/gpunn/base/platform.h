#ifndef GPUNN__BASE_PLATFORM_H
#define GPUNN__BASE_PLATFORM_H
#include "api/kernels.h"

/* ==== >>base/platform =================================================================================== */
/* System headers, compiler attributes and pragmas. Every part of the implementation includes it. */
#if defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1 /* for %zu and %lld */
#endif
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#include <io.h>
#include <process.h>
#else
#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#pragma push_macro("NCC") /* terminals define it, and so may programs */
#include <sys/ioctl.h>
#pragma pop_macro("NCC")
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifndef GPUNN_NO_THREADS
#include <pthread.h>
#endif
#endif
#ifdef GPUNN_MPI
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#ifndef _WIN32
#include <sched.h>
#endif
#endif
#ifdef GPUNN_CBLAS
#include <cblas.h>
#endif
#ifdef GPUNN_ZLIB
#include <zlib.h>
#endif

/* Names that the program may have defined as macros and that the implementation uses. The program's macros
 * are restored at the end. */
#pragma push_macro("x")
#undef x
#pragma push_macro("a")
#undef a
#pragma push_macro("b")
#undef b
#pragma push_macro("c")
#undef c
#pragma push_macro("y")
#undef y
#pragma push_macro("g")
#undef g
#pragma push_macro("K")
#undef K
#pragma push_macro("where")
#undef where
#pragma push_macro("min")
#undef min
#pragma push_macro("max")
#undef max
#pragma push_macro("abs")
#undef abs
#pragma push_macro("sign")
#undef sign
#pragma push_macro("floor")
#undef floor
#pragma push_macro("exp")
#undef exp
#pragma push_macro("expm1")
#undef expm1
#pragma push_macro("log")
#undef log
#pragma push_macro("log1p")
#undef log1p
#pragma push_macro("sqrt")
#undef sqrt
#pragma push_macro("tanh")
#undef tanh
#pragma push_macro("erf")
#undef erf
#pragma push_macro("sigmoid")
#undef sigmoid
#pragma push_macro("sin")
#undef sin
#pragma push_macro("cos")
#undef cos
#pragma push_macro("pow")
#undef pow
#pragma push_macro("floordiv")
#undef floordiv
#pragma push_macro("power")
#undef power
#pragma push_macro("nadam_product")
#undef nadam_product
#pragma push_macro("near")
#undef near
#pragma push_macro("far")
#undef far
#pragma push_macro("small")
#undef small
#pragma push_macro("huge")
#undef huge
#pragma push_macro("slots")
#undef slots
#pragma push_macro("emit")
#undef emit
#pragma push_macro("imaginary")
#undef imaginary
#pragma push_macro("move")
#undef move
#pragma push_macro("NO")
#undef NO
#pragma push_macro("DICE")
#undef DICE
#pragma push_macro("ALIGN")
#undef ALIGN
#pragma push_macro("TILE")
#undef TILE
#pragma push_macro("ROWS")
#undef ROWS
#pragma push_macro("WIDTH")
#undef WIDTH
#pragma push_macro("BLOCK")
#undef BLOCK
#pragma push_macro("NCC")
#undef NCC
#pragma push_macro("OPEN")
#undef OPEN
#pragma push_macro("CLOSED")
#undef CLOSED

/* unused: some private functions serve only some configurations. Builds without optimization call them, which
 * compiles faster. */
#if defined(__GNUC__)
#define GPUNN__PRIVATE __attribute__((unused)) static
#if defined(__OPTIMIZE__)
#define GPUNN__INLINE __attribute__((unused, always_inline)) static inline
#else
#define GPUNN__INLINE __attribute__((unused)) static inline
#endif
#define GPUNN__NOINLINE __attribute__((unused, noinline)) static
#else
#define GPUNN__PRIVATE static
#define GPUNN__INLINE static inline
#define GPUNN__NOINLINE static
#endif
/* Linkage of functions shared by the parts of templates/gpunn: private to this file, or to a library whose
 * parts are compiled separately. */
#ifdef GPUNN__PARTS
#define GPUNN__INTERNAL __attribute__((visibility("hidden")))
#define GPUNN__DECLARE(variable) extern GPUNN__INTERNAL variable;
#else
#define GPUNN__INTERNAL GPUNN__PRIVATE
#define GPUNN__DECLARE(variable)
#endif
#if defined(__cplusplus)
#define GPUNN__RESTRICT __restrict
#define GPUNN__THREAD_LOCAL thread_local
#elif defined(__GNUC__)
#define GPUNN__RESTRICT restrict
#define GPUNN__THREAD_LOCAL __thread
#else
#define GPUNN__RESTRICT restrict
#define GPUNN__THREAD_LOCAL __declspec(thread)
#endif
/* Marks rarely executed code (plans, readers), which runs once per model or file. It is compiled with less
 * optimization, for a faster build: it is half of this file. -Og is the fastest that still inlines. Functions
 * with one caller are inlined too, which makes the code smaller. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) && !defined(__CUDACC__)
#define GPUNN__COLD
#endif
/* Marks kernels. At -O2, gcc 12 vectorizes only loops whose count is a constant number of vectors. */
#if defined(GPUNN__COLD) && !defined(__OPTIMIZE_SIZE__)
#define GPUNN__HOT
#endif
/* -ffast-math lets compilers assume that all numbers are finite. This code turns that off, since NaN and
 * infinities indicate bad losses. */
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ && defined(__GNUC__)
#define GPUNN__FAST_MATH
#ifdef __clang__
#pragma float_control(precise, on, push)
#else
#pragma GCC push_options
#pragma GCC optimize("no-finite-math-only")
#endif
#endif
/* States that the following loop has no loop-carried dependency. clang must not warn where the loop calls
 * sinf, or at -O1, which does not vectorise. */
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#define GPUNN__IVDEP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GPUNN__IVDEP _Pragma("GCC ivdep")
#else
#define GPUNN__IVDEP
#endif

#endif /* GPUNN__BASE_PLATFORM_H */
