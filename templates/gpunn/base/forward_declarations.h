#ifndef GPUNN__BASE_FORWARD_DECLARATIONS_H
#define GPUNN__BASE_FORWARD_DECLARATIONS_H
#include "base/structs.h"

/* ==== >>base/forward_declarations ======================================================================== *
 * Functions that later parts define and earlier parts call. */
/* Frees the model's plans (>>plan/steps). Call it after changing anything that plans depend on. */
GPUNN__INTERNAL void gpunn__invalidate(gpunn_model *model);
/* Assigns places among the gradients anew, after a change of which parameters have one. The gradients and the
 * plans are freed. scratch: tensor_count pointers (>>plan/plan). */
GPUNN__INTERNAL void gpunn__place_gradients(gpunn_model *model, gpunn_tensor **scratch);
/* Parts of a training step (>>train/optimizer). prepare allocates the optimizer's state. update makes all
 * updates at once, from the gradients of `parts` calls. collect adds the updates to a run instead; advance
 * counts that run. */
GPUNN__INTERNAL GPUNN__STATUS        gpunn__optimizer_prepare(gpunn_optimizer *opt);
GPUNN__INTERNAL GPUNN__STATUS        gpunn__optimizer_update(gpunn_optimizer *opt, int parts, bool clips,
                                                             bool trains);
GPUNN__INTERNAL gpunn_status         gpunn__optimizer_collect(gpunn_optimizer *opt, gpunn_run *run,
                                                              gpunn_tensor *loss, bool updates);
GPUNN__INTERNAL void                 gpunn__optimizer_advance(gpunn_optimizer *opt, const gpunn_run *run);
GPUNN__INTERNAL GPUNN__STATUS        gpunn__rejected_sync(gpunn_optimizer *opt);
GPUNN__INTERNAL uint64_t            *gpunn__doubt_before(gpunn_model *model);
GPUNN__INTERNAL const gpunn_backend *gpunn__cpu_backend(void); /* >>cpu/cpu */
/* Writes initial values to host memory (>>cpu/initial). */
GPUNN__INTERNAL void gpunn__draw(const gpunn_drawing *drawing, float *out);
/* The CPU backend's draw (>>cpu/initial). */
GPUNN__INTERNAL GPUNN__STATUS gpunn__cpu_draw(void *context, const gpunn_drawing *drawing, float *to);
/* Converts values [begin, end) as C does; BOOL is x != 0. No dtype is F16 or BF16 (>>cpu/elementwise). */
GPUNN__INTERNAL void gpunn__cast_values(void *to, gpunn_dtype to_dtype, const void *from,
                                        gpunn_dtype from_dtype, int64_t begin, int64_t end);
/* Shape rules, gpunn__NAME_rule in >>graph/infer. */
typedef struct gpunn__inference gpunn__inference;
#define GPUNN__RULE(name) GPUNN__INTERNAL bool gpunn__##name##_rule(const gpunn__inference *i);
#define GPUNN__SIGNATURE(text)
#define GPUNN__X(ENUM, name, operands, reads, reads_out, backward, traits, rule) rule
GPUNN_OTHER_OPS(GPUNN__X)
GPUNN_ALIAS_OPS(GPUNN__X)
GPUNN__RULE(broadcast)
GPUNN__RULE(signature)
#undef GPUNN__X
#undef GPUNN__RULE
#undef GPUNN__SIGNATURE
/* An op with the function that computes it on the CPU, gpunn__cpu_NAME in a part of cpu/, and its shape rule.
 * templates/ops.md lists them. Builders pass it on. So a static program, or one whose linker drops sections,
 * contains only the code of the ops it builds. */
typedef struct gpunn__cpu       gpunn__cpu;
typedef struct gpunn__operation gpunn__operation;
struct gpunn__operation {
    gpunn_op op;
    gpunn_status (*cpu)(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action);
    bool (*rule)(const gpunn__inference *);
    const char *signature; /* if the rule is gpunn__signature_rule */
};
#define GPUNN__RULE(name) gpunn__##name##_rule, NULL
#define GPUNN__SIGNATURE(text) gpunn__signature_rule, text
/* The names are pasted before they come here, as a program may have macros of theirs. */
#define GPUNN__OPERATION(operation, op, cpu_op, ...)                                                       \
    GPUNN__INTERNAL GPUNN__STATUS         cpu_op(gpunn__cpu *cpu, gpunn_step *step, gpunn__action action); \
    GPUNN__PRIVATE const gpunn__operation operation = {op, cpu_op, __VA_ARGS__};
#define GPUNN__X(ENUM, name, ...) \
    GPUNN__OPERATION(gpunn__operation_##name, GPUNN_OP_##ENUM, gpunn__cpu_##name, GPUNN__RULE(broadcast))
GPUNN__ELEMENTWISE_OPS(GPUNN__X)
#undef GPUNN__X
#define GPUNN__X(ENUM, name, operands, reads, reads_out, backward, traits, rule) \
    GPUNN__OPERATION(gpunn__operation_##name, GPUNN_OP_##ENUM, gpunn__cpu_##name, rule)
GPUNN_OTHER_OPS(GPUNN__X)
#undef GPUNN__X
GPUNN__PRIVATE const gpunn__operation gpunn__operation_reshape = {GPUNN_OP_RESHAPE, NULL,
                                                                  GPUNN__RULE(reshape)};
#undef GPUNN__OPERATION
#undef GPUNN__RULE
#undef GPUNN__SIGNATURE
/* Reads and checks the header of a GGUF file, which begins with these bytes (>>io/gguf). */
typedef struct gpunn__archive gpunn__archive;
#ifndef GPUNN_NO_GGUF
GPUNN__INTERNAL GPUNN__STATUS gpunn__gguf_header(gpunn__archive *a, const unsigned char head[8]);
/* The integer of a key of a GGUF file's metadata, or `none`. */
GPUNN__INTERNAL int64_t gpunn__gguf_integer(const gpunn__archive *a, const char *key, int64_t none);
#endif
/* Frees the blocks that gpunn_load has kept (>>io/load). */
GPUNN__INTERNAL void gpunn__free_kept(gpunn_model *model);
/* Binds a parameter to blocks, which runs only read. See run/bind.c. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__bind_blocks(gpunn_tensor *t, gpunn_dtype format, void *memory,
                                                 size_t bytes);
/* Freezes a parameter, which then has neither gradient nor optimizer state. See graph/tensors.c. */
GPUNN__INTERNAL void gpunn__freeze(gpunn_tensor *parameter);
/* Frees what gpunn_calibrate has recorded; NULL is allowed. See train/calibrate.c. */
GPUNN__INTERNAL void gpunn__calibration_free(gpunn_device *dev, gpunn__calibration *c);
/* Call it after changing weights other than by gpunn_write. */
#define GPUNN__WEIGHTS_CHANGED(model) \
    ((void)(model)->state.weights_version++, (void)((model)->half_stale = true))

#endif /* GPUNN__BASE_FORWARD_DECLARATIONS_H */
