"""Products of matrices and vectors, and the linear layer."""
from ..spec_writer import Parameter, Refused
from .operands import number
from .registry import operation


@operation("linear")
def linear(w, call, x, weight, bias=None):
    name = w.layer_name(weight=weight, bias=bias)
    if name:
        shape = x.full[:-1] + weight.full[:1]
        return w.layer("linear", name, x, shape, {"weight": weight, "bias": bias},
                       out_features=weight.full[0], bias=False if bias is None else None)
    name = w.layer_name(bias=bias) if bias is not None else w.free_name(call)
    if name and isinstance(weight, Parameter) and weight.value:  # another layer's weight
        return w.layer("linear", name, x, x.full[:-1] + weight.full[:1], {"bias": bias},
                       out_features=weight.full[0], bias=False if bias is None else None, weight=weight.value)
    y = product_of(w, x, weight, True)
    return y if bias is None else w.map("add", y, bias)


def product_of(w, a, b, transpose_b=False):
    """torch.matmul, also of vectors."""
    rank_a, rank_b = len(a.full), len(b.full)
    if rank_a == 1:
        a = w.reshape(a, (1,) + a.full)
    if rank_b == 1:
        b = w.reshape(b, b.full + (1,))
    y = w.matmul(a, b, transpose_b)
    shape = y.shape[:-2] + (() if rank_a == 1 else y.shape[-2:-1]) + (() if rank_b == 1 else y.shape[-1:])
    return w.reshape(y, shape)


@operation("matmul", "mm", "bmm", "mv", "dot")
def matmul(w, call, x, other=None, mat2=None, vec=None, tensor=None, **_):
    return product_of(w, x, next(y for y in (other, mat2, vec, tensor) if y is not None))


@operation("outer", "ger")
def outer(w, call, x, vec2):
    return w.map("mul", w.reshape(x, x.full + (1,)), vec2)


@operation("bilinear")
def bilinear(w, call, input1, input2, weight, bias=None):
    """sum over i, j of x1[i] weight[k][i][j] x2[j], with the products of each pair as one row."""
    (count, one, other), lead = weight.full, input1.full[:-1]
    pairs = w.map("mul", w.reshape(input1, lead + (one, 1)), w.reshape(input2, lead + (1, other)))
    y = product_of(w, w.reshape(pairs, lead + (one * other,)), w.reshape(weight, (count, one * other)), True)
    return y if bias is None else w.map("add", y, bias)


@operation("addmm", "baddbmm", "addbmm")
def addmm(w, call, x, mat1=None, mat2=None, batch1=None, batch2=None, beta=1, alpha=1, **_):
    if call.op == "addbmm":
        raise Refused("it sums over the batch")
    y = w.scale(product_of(w, *((mat1, mat2) if batch1 is None else (batch1, batch2))), number(alpha))
    return y if number(beta) == 0 else w.map("add", w.scale(x, number(beta)), y)


@operation("einsum")
def einsum(w, call, equation, tensors, **_):
    return w.einsum(equation, tensors)
