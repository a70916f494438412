#include "base/shapes.h"
#include "graph/nodes.h"
#include "graph/expr.h"
#include "layers/basic.h"

/* ==== >>layers/random =================================================================================== */
/* Builders that draw random numbers: dropout, random tensors, randomized activations. Each has a stream
 * of its own, which keys its random numbers in every run. */

static gpunn_tensor *gpunn__random_node(const gpunn__operation *operation, gpunn_tensor *x, float p)
{
    gpunn__call call;
    if (!gpunn__begin_x(&call, gpunn_op_name(operation->op), NULL, x, true)) return NULL;
    if (!(p >= 0 && p <= 1))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT, "p is %g; use a probability from 0 to 1",
                                (double)p);
    gpunn_attributes attr = gpunn__no_attributes();
    attr.dropout_p = p;
    attr.random_stream = x->model->random_streams;
    gpunn_tensor *y = gpunn__node(&call, operation, &attr, &x, 1);
    if (y) x->model->random_streams++;
    return y;
}

GPUNN_API gpunn_tensor *gpunn_dropout(gpunn_tensor *x, float p)
{
    return gpunn__random_node(&gpunn__operation_dropout, x, p);
}

GPUNN_API gpunn_tensor *gpunn_rand_like(gpunn_tensor *x)
{
    return gpunn__random_node(&gpunn__operation_rand_like, x, 0);
}

GPUNN_API gpunn_tensor *gpunn_randn_like(gpunn_tensor *x)
{
    return gpunn__random_node(&gpunn__operation_randn_like, x, 0);
}

static gpunn_tensor *gpunn__random_in(const gpunn__operation *operation, const char *name, gpunn_model *model,
                                      gpunn_shape shape)
{
    static const float zero = 0;
    const gpunn_shape  scalar = {{0}};
    gpunn__call        whole;
    if (!gpunn__begin_model(&whole, model, name, NULL) || gpunn__rank_of(&whole, &shape, 2) < 0) return NULL;
    gpunn_tensor *x = gpunn_constant(model, scalar, &zero);
    x = gpunn_expand(x, shape);
    return gpunn__call_finish(&whole, gpunn__random_node(operation, x, 0));
}

GPUNN_API gpunn_tensor *gpunn_rand(gpunn_model *model, gpunn_shape shape)
{
    return gpunn__random_in(&gpunn__operation_rand_like, "rand", model, shape);
}

GPUNN_API gpunn_tensor *gpunn_randn(gpunn_model *model, gpunn_shape shape)
{
    return gpunn__random_in(&gpunn__operation_randn_like, "randn", model, shape);
}

/* A scalar that tells the mode: 1 in evaluation, 0 or 2 in training. It is dropout of 1 with p = 0.5. */
static gpunn_tensor *gpunn__mode(gpunn_model *model)
{
    static const float one = 1;
    const gpunn_shape  scalar = {{0}};
    return gpunn_dropout(gpunn_constant(model, scalar, &one), 0.5f);
}

GPUNN_API gpunn_tensor *gpunn_rrelu(gpunn_tensor *x, float lower, float upper)
{
    static const char *const names[] = {"x", "random", "mode"}, *const bounds[] = {"lower", "upper"};
    const double numbers[] = {(double)lower, (double)upper};
    gpunn__call  call;
    if (!gpunn__begin_x(&call, "rrelu", NULL, x, true)) return NULL;
    if (!(lower <= upper && isfinite(lower) && isfinite(upper)))
        return gpunn__call_fail(&call, GPUNN_ERR_ARGUMENT,
                                "the slopes go from %g to %g; use two numbers, the smaller one first",
                                numbers[0], numbers[1]);
    gpunn_tensor *random = gpunn_rand_like(x), *in[] = {x, random, random ? gpunn__mode(call.model) : NULL};
    return gpunn__call_finish(&call, gpunn__expr(GPUNN__RRELU, names, in, 3, bounds, numbers, 2, NULL));
}

GPUNN_API gpunn_tensor *gpunn_prelu(gpunn_tensor *x, const char *name, int num_parameters, float init)
{
    gpunn__call       call;
    char              text[128];
    gpunn__plain_args args;
    memset(&args, 0, sizeof args);
    args.count = num_parameters;
    args.number = init;
    if (!gpunn__begin_layer(&call, "prelu", name, x) || !gpunn__apply_defaults(&call, &args)) return NULL;
    const int64_t count = args.count;
    if (count != 1 && (x->rank < 2 || x->dim[1] != count))
        return gpunn__call_fail(&call, GPUNN_ERR_SHAPE,
                                "num_parameters is %d, but must be 1 or the channels of axis 1 (input %s)",
                                (int)count, gpunn__shape_text(x, text));
    gpunn_tensor *weight = gpunn__layer_weight(&call, GPUNN__PARAMETER, "weight", 1, &count,
                                               GPUNN_INIT_CONSTANT, args.number);
    if (weight && count > 1 && x->rank > 2) {
        gpunn_shape column = {{count}}; /* [channels, 1, ...], which broadcasts along axis 1 */
        for (int i = 2; i < x->rank; i++) column.dim[i - 1] = 1;
        weight = gpunn_reshape(weight, column);
    }
    gpunn_tensor *y = gpunn_parametric_relu(x, weight);
    return gpunn__set_layer(&call, y);
}
