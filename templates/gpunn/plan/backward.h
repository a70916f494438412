#ifndef GPUNN__PLAN_BACKWARD_H
#define GPUNN__PLAN_BACKWARD_H
#include "plan/steps.h"

/* ==== >>plan/backward ============================================================================================== *
 * A reshape's gradient is its operand's: one memory, no step. The first contribution to a gradient writes (=), later ones add
 * (+=); a parameter's first one adds too when it has been written since gpunn_zero_grad. Steps run by falling id. */
/* The node after which a step is named. */
GPUNN__INTERNAL gpunn_tensor *gpunn__node_of(const gpunn__builder *b, const gpunn_step *step);

GPUNN__INTERNAL bool gpunn__group_step(gpunn__builder *b, int index, bool backward);

/* Which tensors have gradients, and who computes them. */
GPUNN__INTERNAL void gpunn__mark_gradients(gpunn__builder *b);

GPUNN__INTERNAL void gpunn__mark_activated(gpunn__builder *b);

/* Begins a pass: of several with no gradients so far. */
GPUNN__INTERNAL void gpunn__begin_pass(gpunn__builder *b, int pass);

GPUNN__INTERNAL void gpunn__end_pass(gpunn__builder *b);

GPUNN__INTERNAL bool gpunn__backward_steps(gpunn__builder *b);

#endif /* GPUNN__PLAN_BACKWARD_H */
