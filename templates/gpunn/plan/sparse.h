#ifndef GPUNN__PLAN_SPARSE_H
#define GPUNN__PLAN_SPARSE_H
#include "plan/steps.h"

/* ==== >>plan/sparse ====================================================================================== *
 * Gradients of tables with .sparse, of embeddings and hash grids. Such a gradient consists of the rows that
 * tokens or points have referred to since gpunn_zero_grad. The batch sizes that are planned decide its
 * capacity. If a plan needs more, the rows move to larger memory, and all other plans are dropped. */

/* Lists the sparse tables that the plan gives gradients, in plan->sparse. Returns false if out of memory. */
GPUNN__INTERNAL bool gpunn__list_sparse(gpunn__builder *b);

/* Describes the gradient that a step writes to the sparse table `root` as operand i. Fails unless the step is
 * that of a layer with .sparse. */
GPUNN__INTERNAL bool gpunn__sparse_gradient(gpunn__builder *b, gpunn_step *step, int i, int root);

/* Gives the plan's sparse tables the memory of their gradients. */
GPUNN__INTERNAL GPUNN__STATUS gpunn__commit_sparse(gpunn_model *model, const gpunn__plan *plan);

/* Bytes of the model's sparse gradients, once the plan has run. */
GPUNN__INTERNAL size_t gpunn__sparse_bytes(const gpunn_model *model, const gpunn__plan *plan);

/* Whether the rows of a run have room beside those of earlier runs. */
GPUNN__INTERNAL bool gpunn__fits_sparse(const gpunn__plan *plan, const gpunn__request *request);

/* Counts the rows that a run is about to add. */
GPUNN__INTERNAL void gpunn__count_sparse(const gpunn__plan *plan);

#endif /* GPUNN__PLAN_SPARSE_H */
