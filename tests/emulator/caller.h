/* A program with CUDA of its own around gpunn, as tests of the two together need it. Of a status only
 * failures are told, on stderr. */
#ifndef CALLER_H
#define CALLER_H
#include <stdbool.h>
#include <stddef.h>

void *caller_stream(void); /* on the current device */
void *caller_legacy_stream(void);
void  caller_end(void *stream);
int   caller_device(void);
void  caller_set_device(int device);
void  caller_err(void);     /* leaves an error pending */
int   caller_pending(void); /* cudaError_t; 0: none */
void  caller_forget(void);
void *caller_malloc(size_t bytes); /* on the current device */
void *caller_pinned(size_t bytes);
bool  caller_is_pinned(const void *memory);
void  caller_free(void *memory); /* either */
void  caller_put(void *to, const void *host, size_t bytes, void *stream);
void  caller_get(void *host, const void *from, size_t bytes, void *stream);  /* waits */
void  caller_scale(float *values, size_t count, float factor, void *stream); /* by a kernel */
void  caller_begin_capture(void *stream);
void *caller_end_capture(void *stream); /* a graph that can be launched; NULL: the capture failed */
void  caller_launch(void *graph, void *stream);
void  caller_forget_graph(void *graph);
#endif
