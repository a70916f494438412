/* cmocka.h - the part of cmocka that the tests use, for machines where it cannot be installed:
 * tests/gpu/run.sh takes it. Prints TAP lines. A failing test goes on with the next one by longjmp; there is
 * no mocking. */
#ifndef TEST_CMOCKA_H
#define TEST_CMOCKA_H
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char        *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction  setup_func, teardown_func;
    void              *initial_state;
};
/* clang-format off */
#define cmocka_unit_test(function) {#function, function, NULL, NULL, NULL}
#define cmocka_unit_test_setup_teardown(function, setup, teardown) {#function, function, setup, teardown, NULL}
/* clang-format on */

enum { CMOCKA_FAILED = 1, CMOCKA_SKIPPED };
static jmp_buf     cmocka_end;          /* of the test that runs */
static const char *cmocka_filter = "*"; /* of the names */

static inline void cmocka_set_test_filter(const char *pattern)
{
    cmocka_filter = pattern;
}

static inline void print_message(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    (void)vprintf(format, values);
    va_end(values);
}

static inline void print_error(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    (void)vprintf(format, values);
    va_end(values);
}

static inline void _fail(const char *file, int line)
{
    printf("%s:%d: failure\n", file, line);
    longjmp(cmocka_end, CMOCKA_FAILED);
}

static inline void cmocka_integers(uintmax_t a, uintmax_t b, int wanted, const char *file, int line)
{
    if ((a == b) == wanted) return;
    printf("%#llx %s %#llx\n", (unsigned long long)a, wanted ? "!=" : "==", (unsigned long long)b);
    _fail(file, line);
}

static inline void cmocka_range(uintmax_t value, uintmax_t low, uintmax_t high, const char *file, int line)
{
    if (value >= low && value <= high) return;
    printf("%llu is not in %llu to %llu\n", (unsigned long long)value, (unsigned long long)low,
           (unsigned long long)high);
    _fail(file, line);
}

static inline void cmocka_floats(double a, double b, double epsilon, const char *file, int line)
{
    if (fabs(a - b) <= epsilon) return;
    printf("%.9g != %.9g\n", a, b);
    _fail(file, line);
}

static inline void cmocka_strings(const char *a, const char *b, const char *file, int line)
{
    if (strcmp(a, b) == 0) return;
    printf("\"%s\" != \"%s\"\n", a, b);
    _fail(file, line);
}

static inline void cmocka_memory(const void *a, const void *b, size_t size, int wanted, const char *file,
                                 int line)
{
    if ((memcmp(a, b, size) == 0) == wanted) return;
    size_t at = 0;
    while (at < size && ((const char *)a)[at] == ((const char *)b)[at]) at++;
    printf("%zu bytes %s, first at %zu\n", size, wanted ? "differ" : "are the same", at);
    _fail(file, line);
}

static inline void cmocka_condition(int condition, const char *text, const char *file, int line)
{
    if (condition) return;
    printf("not true: %s\n", text);
    _fail(file, line);
}

#define cmocka_integer(x) ((uintmax_t)(x))
#define cmocka_pointer(x) ((uintmax_t)(uintptr_t)(const void *)(x))
#define assert_true(x) cmocka_condition((x) != 0, #x, __FILE__, __LINE__)
#define assert_false(x) cmocka_condition((x) == 0, "not " #x, __FILE__, __LINE__)
#define assert_null(x) cmocka_condition((x) == NULL, #x " == NULL", __FILE__, __LINE__)
#define assert_non_null(x) cmocka_condition((x) != NULL, #x " != NULL", __FILE__, __LINE__)
#define assert_int_equal(a, b) cmocka_integers(cmocka_integer(a), cmocka_integer(b), 1, __FILE__, __LINE__)
#define assert_int_not_equal(a, b) \
    cmocka_integers(cmocka_integer(a), cmocka_integer(b), 0, __FILE__, __LINE__)
#define assert_ptr_equal(a, b) cmocka_integers(cmocka_pointer(a), cmocka_pointer(b), 1, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b) \
    cmocka_integers(cmocka_pointer(a), cmocka_pointer(b), 0, __FILE__, __LINE__)
#define assert_in_range(x, low, high) cmocka_range((x), (low), (high), __FILE__, __LINE__)
#define assert_float_equal(a, b, epsilon) cmocka_floats((a), (b), (epsilon), __FILE__, __LINE__)
#define assert_string_equal(a, b) cmocka_strings((a), (b), __FILE__, __LINE__)
#define assert_memory_equal(a, b, size) cmocka_memory((a), (b), (size), 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, size) cmocka_memory((a), (b), (size), 0, __FILE__, __LINE__)
#define fail() _fail(__FILE__, __LINE__)
#define fail_msg(...) (print_error(__VA_ARGS__), print_error("\n"), fail())
#define skip() longjmp(cmocka_end, CMOCKA_SKIPPED)

static inline int cmocka_run(const struct CMUnitTest *test)
{
    void *state = test->initial_state;
    /* volatile: kept over longjmp */
    void *volatile kept = NULL;
    volatile bool ready = false;
    volatile int  result = 0;
    switch (setjmp(cmocka_end)) {
    case 0:
        if (test->setup_func && test->setup_func(&state) != 0) return CMOCKA_FAILED;
        kept = state;
        ready = true;
        test->test_func(&state);
        break;
    case CMOCKA_SKIPPED: result = CMOCKA_SKIPPED; break;
    default: result = CMOCKA_FAILED; break;
    }
    if (!ready || test->teardown_func == NULL) return result;
    if (setjmp(cmocka_end) != 0) return CMOCKA_FAILED;
    state = kept;
    return test->teardown_func(&state) == 0 ? result : CMOCKA_FAILED;
}

static inline int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                          CMFixtureFunction setup, CMFixtureFunction teardown)
{
    int failed = 0, planned = 0, number = 0;
    (void)name, (void)setup, (void)teardown; /* no test uses a group's */
    for (size_t i = 0; i < count; i++) planned += fnmatch(cmocka_filter, tests[i].name, 0) == 0;
    printf("1..%d\n", planned);
    for (size_t i = 0; i < count; i++) {
        if (fnmatch(cmocka_filter, tests[i].name, 0) != 0) continue;
        int result = cmocka_run(&tests[i]);
        failed += result == CMOCKA_FAILED;
        printf("%s %d - %s%s\n", result == CMOCKA_FAILED ? "not ok" : "ok", ++number, tests[i].name,
               result == CMOCKA_SKIPPED ? " # SKIP" : "");
        (void)fflush(stdout);
    }
    return failed;
}
#define cmocka_run_group_tests_name(name, tests, setup, teardown) \
    _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof *(tests), setup, teardown)
#define cmocka_run_group_tests(tests, setup, teardown) \
    cmocka_run_group_tests_name(#tests, tests, setup, teardown)
#endif
