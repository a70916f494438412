#ifndef GPUNN__PLAN_STORAGE_H
#define GPUNN__PLAN_STORAGE_H
#include "plan/steps.h"

/* ==== >>plan/storage ===================================================================================== *
 * How a plan stores values: in 32 or 16 bits, and images with channels first or last.
 * 16 bits: for models of precision BF16 or F16 on a backend that computes in these dtypes. Products (linear,
 * convolutions, matmul, attention) read and write 16 bits. So do ops whose operands, parameters aside, are
 * all stored in 16 bits. An op with an F32 operand gives F32, as torch's promotion does. Sums, log_softmax,
 * losses, affine_grid, gradient_energy and recurrent layers always give F32. If products read the F32 result
 * of a norm over rows, the norm writes it in 16 bits too, or only in 16 bits if nothing else reads it. An
 * inference-only model follows torch's net.half(): rows of embeddings have their table's 16 bits, and F32
 * inputs do not make results F32. The former holds for tables in 16-bit storage in training, too. */

/* The model's 16-bit dtype: F16 with precision F16, else BF16. */
GPUNN__INTERNAL gpunn_dtype gpunn__half_of(const gpunn_model *model);

/* Sets `storage` of weights that are stored only in 16 bits or only as blocks. These are weights of an
 * inference-only model, or those that gpunn_lora froze, that only products and embeddings read. The dtype is
 * that of gpunn_set_storage or of the model, or 16 bits with precision BF16 or F16. Weights whose rows are no
 * whole blocks have blocks of 32 or stay wider. Considers weights that have no memory yet. */
GPUNN__INTERNAL void gpunn__find_storage(gpunn_model *model);

/* Why a model stores weights in 16 bits or blocks, for messages. */
GPUNN__INTERNAL const char *gpunn__storage_cause(const gpunn_model *model);

/* The dtype of a weight in memory. */
GPUNN__INTERNAL gpunn_dtype gpunn__weight_dtype(const gpunn_tensor *t);

/* Bytes of a weight in memory. */
GPUNN__INTERNAL size_t gpunn__weight_bytes(const gpunn_tensor *t);

/* Whether a parameter is bound to blocks in memory of the program, which is only read. It has no memory of
 * its own. */
GPUNN__INTERNAL bool gpunn__has_bound_blocks(const gpunn_tensor *t);

/* Whether a parameter is trained beside the adapters of gpunn_lora. */
GPUNN__INTERNAL bool gpunn__is_released(const gpunn_tensor *t);

/* Whether a parameter without memory can be bound to blocks: only products and embeddings that take blocks
 * read it. */
GPUNN__INTERNAL bool gpunn__takes_blocks(const gpunn_tensor *t);

/* Fails if an op of this plan cannot read a weight as it is stored. This happens after ops are added or the
 * device changes. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__check_storage(const gpunn__builder *b);

/* Chooses each tensor's dtype and channel order in memory. */
GPUNN__INTERNAL void gpunn__mark_storage(gpunn__builder *b);

/* Counts the readers of a value under all its names: products that read it as a factor, and others. A value
 * that the program can read counts as one more of the others. */
GPUNN__INTERNAL void gpunn__count_readers(const gpunn__builder *b, const gpunn_tensor *t, int *products,
                                          int *others);

/* Whether the op's operands may have either layout, each its own. */
GPUNN__INTERNAL bool gpunn__reads_any_layout(const gpunn__plan *plan, const gpunn_tensor *t);

/* Whether t is a convolution that reads its few channels as planes. */
GPUNN__INTERNAL bool gpunn__reads_few_planes(const gpunn__plan *plan, const gpunn_tensor *t);

/* Whether the step of t must be described as its values are stored, with the channels as the last axis. */
GPUNN__INTERNAL bool gpunn__broadcasts_channels(const gpunn_tensor *t);

#endif /* GPUNN__PLAN_STORAGE_H */
