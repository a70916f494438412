${opening}
#ifndef ${NAME}_INFERENCE_H
#define ${NAME}_INFERENCE_H
#include <stdbool.h>
#include <stdint.h>

/* The model as plain C99: no allocation, no library, no hidden state. One C file of the program must
 * define this before it includes this file:
 *     #define ${NAME}_INFERENCE_IMPLEMENTATION
${facts}
 */
#ifdef __cplusplus
extern "C" {
#endif
${declarations}
#ifdef __cplusplus
}
#endif
#endif

#ifdef ${NAME}_INFERENCE_IMPLEMENTATION
#include <float.h>
#include <stddef.h>

#define ${NAME}_FN static inline

//@if restrict
#ifdef __cplusplus
#define ${NAME}_RESTRICT
#else
#define ${NAME}_RESTRICT restrict
#endif

//@end
${library}

${functions}
${definitions}
#undef ${NAME}_INFERENCE_IMPLEMENTATION
#endif
