#ifndef GPUNN__API_CONFIG_H
#define GPUNN__API_CONFIG_H
/* ==== >>config ========================================================================================== */
/* Version numbers, symbol visibility (GPUNN_STATIC) and the macros behind named arguments. */
#define GPUNN_VERSION_MAJOR 0
#define GPUNN_VERSION_MINOR 2
#define GPUNN_VERSION "0.2"
#define GPUNN_VERSION_NUMBER (1000 * GPUNN_VERSION_MAJOR + GPUNN_VERSION_MINOR)

#if !defined(__cplusplus) && (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
#error "gpunn.h needs C99 or C++17 (cc -std=c99)"
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef GPUNN_API
/* Linkage of the public functions. Define it before the include for another one. */
#if defined(GPUNN_STATIC) && defined(__GNUC__)
#define GPUNN_API __attribute__((unused)) static
#elif defined(GPUNN_STATIC)
#define GPUNN_API static
#elif defined(__GNUC__) && !defined(_WIN32)
#define GPUNN_API __attribute__((visibility("default"))) extern
#else
#define GPUNN_API extern
#endif
#endif

#if defined(__GNUC__)
/* Return type of functions whose failure must not be ignored. */
#define GPUNN__STATUS __attribute__((warn_unused_result)) gpunn_status
#ifdef __MINGW32__
#define GPUNN__PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define GPUNN__PRINTF(text, first) __attribute__((format(printf, text, first)))
#endif
#else
#define GPUNN__STATUS gpunn_status
#define GPUNN__PRINTF(text, first)
#endif

/* Named arguments. Each argument struct begins with args_, so a call may name no argument at all. The macros
 * set args_ to the version of the header that the caller saw; other languages may leave it 0. If a compile
 * error led you here: the fields are in the struct whose name the error shows. In C++ they must keep the
 * order of their declaration. */
#ifdef __cplusplus
/* clang-format off */
#if defined(__clang__) /* designators are an extension before C++20; clang rejects a size_t where g++ warns */
#define GPUNN_ARGS(type, ...)                                                                      \
    _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wc++11-narrowing\"")     \
        __extension__ type{.args_ = GPUNN_VERSION_NUMBER, __VA_ARGS__} _Pragma("clang diagnostic pop")
#elif defined(__GNUC__)
#define GPUNN_ARGS(type, ...) __extension__ type{.args_ = GPUNN_VERSION_NUMBER, __VA_ARGS__}
#else
#define GPUNN_ARGS(type, ...) type{.args_ = GPUNN_VERSION_NUMBER, __VA_ARGS__}
#endif
/* clang-format on */
#define GPUNN_LITERAL(type) type
#else
#define GPUNN_ARGS(type, ...) ((type){.args_ = GPUNN_VERSION_NUMBER, __VA_ARGS__})
#define GPUNN_LITERAL(type) (type)
#endif
#define GPUNN_EXPAND(x) x
#define GPUNN_FIRST(first, ...) first
#define GPUNN_REST(first, ...) __VA_ARGS__
/* Expands one variadic list to a required argument and named ones: NAMED(type, x) or NAMED(type, x, .p =
 * 1). */
#define GPUNN_NAMED(type, ...) \
    GPUNN_EXPAND(GPUNN_FIRST(__VA_ARGS__, 0)), GPUNN_ARGS(type, GPUNN_EXPAND(GPUNN_REST(__VA_ARGS__, )))

#define GPUNN_ZERO (-2147483647 - 1) /* sets a field to 0 where 0 would mean the default */

#endif /* GPUNN__API_CONFIG_H */
