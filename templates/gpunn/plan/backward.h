#ifndef GPUNN__PLAN_BACKWARD_H
#define GPUNN__PLAN_BACKWARD_H
#include "plan/storage.h"

/* ==== >>plan/backward ==================================================================================== *
 * Plans the backward pass, in reverse execution order. A reshape shares its operand's gradient memory and has
 * no step. The first contribution to a gradient writes (=), later ones accumulate (+=). A parameter's first
 * contribution accumulates too if its gradient has been written since gpunn_zero_grad. */
/* Appends the forward or backward step of a fused group. */
GPUNN__INTERNAL bool gpunn__fused_step(gpunn__builder *b, int index, bool backward);

/* Marks the tensors that have gradients (`wants`) and those that the loss depends on. */
GPUNN__INTERNAL void gpunn__mark_gradients(gpunn__builder *b);

/* Marks the activations whose derivative the following linear's backward step applies. */
GPUNN__INTERNAL void gpunn__mark_activated(gpunn__builder *b);

/* Fills b->contributions for the losses of the current pass. */
GPUNN__INTERNAL void gpunn__list_contributions(gpunn__builder *b);

/* Begins a backward pass. With several passes, each one after the first starts without gradients. */
GPUNN__INTERNAL void gpunn__begin_pass(gpunn__builder *b, int pass);

/* Records where the pass ends and, with several passes, its gradient slots. */
GPUNN__INTERNAL void gpunn__end_pass(gpunn__builder *b);

/* Appends the backward steps of the current pass. */
GPUNN__INTERNAL bool gpunn__backward_steps(gpunn__builder *b);

#endif /* GPUNN__PLAN_BACKWARD_H */
