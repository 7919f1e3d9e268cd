"""Functions and methods of tensors, as the modules that do the same."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from lipkit.nn.activations.absolute import Absolute
from lipkit.nn.conversion.converted_functions import Clamp, Extreme, NearestUpsample
from lipkit.nn.conversion.converted_layers import ScaledMean

# Rearranging, cutting out and padding with zeros: constant 1 whatever the other arguments are.
MOVES: frozenset[object] = frozenset(
    {
        *(torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.movedim),
        *(torch.swapaxes, torch.flip, torch.roll, torch.narrow, torch.select, torch.split, torch.chunk, torch.unbind),
        *(torch.neg, operator.neg, functional.pixel_shuffle, functional.pixel_unshuffle, torch.unflatten, torch.clone),
        *("flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "movedim", "swapaxes", "flip"),
        *("roll", "narrow", "select", "split", "chunk", "unbind", "neg", "contiguous", "unflatten", "clone", "t"),
        *("float", "double", "half", "bfloat16", "to", "type_as"),
    }
)
# The functions among them that give several tensors.
SEVERAL: frozenset[object] = frozenset({torch.split, torch.chunk, torch.unbind, "split", "chunk", "unbind"})
# These read only the shape.
SHAPES: frozenset[object] = frozenset({"size", "dim", "ndimension", "numel", "shape", "ndim", "device", "dtype"})
ADD: frozenset[object] = frozenset({operator.add, operator.iadd, torch.add, "add", "add_"})
SUB: frozenset[object] = frozenset({operator.sub, operator.isub, torch.sub, torch.subtract, "sub", "sub_"})
MUL: frozenset[object] = frozenset({operator.mul, operator.imul, torch.mul, "mul", "mul_"})
DIV: frozenset[object] = frozenset({operator.truediv, operator.itruediv, torch.div, "div", "div_"})
PRODUCTS: frozenset[object] = frozenset({operator.matmul, torch.matmul, torch.bmm, torch.einsum, "matmul", "bmm"})
CAT: frozenset[object] = frozenset({torch.cat, torch.concat, torch.concatenate})
STACK: frozenset[object] = frozenset({torch.stack})


def _mean(_: object, dim: Any = None, keepdim: bool = False, **_rest: object) -> nn.Module | None:
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return ScaledMean(axes, keepdim) if axes and 0 not in axes else None


def _extreme(least: bool) -> Callable[..., nn.Module | None]:
    def build_module(_: object, dim: Any = None, keepdim: bool = False) -> nn.Module | None:
        axes = (dim,) if isinstance(dim, int) else tuple(dim or ())
        # Over all axes it would mix the samples of a batch.
        return Extreme(axes, keepdim, least) if axes and 0 not in axes else None

    return build_module


def _clamp(*names: str) -> Callable[..., nn.Module | None]:
    """A cut by numbers; limits that are tensors may depend on the input."""

    def build_module(_: object, *args: Any, **kwargs: Any) -> nn.Module | None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        low, high = given.get("min"), given.get("max")
        return Clamp(low, high) if all(limit is None or is_real(limit) for limit in (low, high)) else None

    return build_module


def _interpolate(
    _: object, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *_args: Any, **_rest: Any
) -> nn.Module | None:
    factors = tuple(scale_factor) if isinstance(scale_factor, list | tuple) else (scale_factor,)
    whole = all(is_real(factor) and float(factor).is_integer() and factor >= 1 for factor in factors)
    known = size is None and mode in ("nearest", "nearest-exact") and whole
    return NearestUpsample(tuple(map(int, factors))) if known else None


def _dropout(build: Callable[[float], nn.Module]) -> Callable[..., nn.Module | None]:
    """A module from the arguments of F.dropout, or of torch.dropout, in the mode that the function was called in."""

    def build_module(_: object, *args: Any, **kwargs: Any) -> nn.Module | None:
        given = {"p": 0.5, "training": True, **dict(zip(("p", "training"), args, strict=False)), **kwargs}
        p, training = given["p"], given.get("train", given["training"])
        known = isinstance(p, int | float) and isinstance(training, bool)
        return build(p).train(training) if known else None

    return build_module


def _activation(build: Callable[..., nn.Module], *names: str) -> Callable[..., nn.Module | None]:
    """A module from the further arguments of a function, by position as `names` or by name; `inplace` is dropped."""

    def build_module(_: object, *args: Any, **kwargs: Any) -> nn.Module | None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return build(**{name: value for name, value in given.items() if name not in _UNUSED})

    return build_module


# Arguments of functions that their modules do not have, and that change nothing of the constant.
_UNUSED = ("inplace", "input", "_stacklevel", "dtype")
_WINDOW = ("kernel_size", "stride", "padding")
_MAX = (*_WINDOW, "dilation", "ceil_mode", "return_indices")
_AVG = (*_WINDOW, "ceil_mode", "count_include_pad", "divisor_override")
_PAIRS: tuple[tuple[tuple[object, ...], Callable[..., nn.Module | None]], ...] = (
    ((functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_"), _activation(nn.ReLU, "inplace")),
    ((functional.relu6,), _activation(nn.ReLU6, "inplace")),
    ((functional.tanh, torch.tanh, "tanh", "tanh_"), _activation(nn.Tanh)),
    ((functional.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_"), _activation(nn.Sigmoid)),
    ((functional.leaky_relu, functional.leaky_relu_), _activation(nn.LeakyReLU, "negative_slope", "inplace")),
    ((functional.elu, functional.elu_), _activation(nn.ELU, "alpha", "inplace")),
    ((functional.celu,), _activation(nn.CELU, "alpha", "inplace")),
    ((functional.selu, torch.selu), _activation(nn.SELU, "inplace")),
    ((functional.gelu,), _activation(nn.GELU, "approximate")),
    ((functional.silu,), _activation(nn.SiLU, "inplace")),
    ((functional.mish,), _activation(nn.Mish, "inplace")),
    ((functional.hardswish,), _activation(nn.Hardswish, "inplace")),
    ((functional.hardtanh,), _activation(nn.Hardtanh, "min_val", "max_val", "inplace")),
    ((functional.hardsigmoid,), _activation(nn.Hardsigmoid, "inplace")),
    ((functional.softplus,), _activation(nn.Softplus, "beta", "threshold")),
    ((functional.softsign,), _activation(nn.Softsign)),
    ((functional.logsigmoid,), _activation(nn.LogSigmoid)),
    ((functional.softmax, torch.softmax, "softmax"), _activation(nn.Softmax, "dim")),
    ((functional.max_pool1d, torch.max_pool1d), _activation(nn.MaxPool1d, *_MAX)),
    ((functional.max_pool2d, torch.max_pool2d), _activation(nn.MaxPool2d, *_MAX)),
    ((functional.max_pool3d, torch.max_pool3d), _activation(nn.MaxPool3d, *_MAX)),
    ((functional.avg_pool1d,), _activation(nn.AvgPool1d, *_AVG)),
    ((functional.avg_pool2d,), _activation(nn.AvgPool2d, *_AVG)),
    ((functional.avg_pool3d,), _activation(nn.AvgPool3d, *_AVG)),
    ((functional.adaptive_avg_pool1d, torch.adaptive_avg_pool1d), _activation(nn.AdaptiveAvgPool1d, "output_size")),
    ((functional.adaptive_avg_pool2d,), _activation(nn.AdaptiveAvgPool2d, "output_size")),
    ((functional.adaptive_avg_pool3d,), _activation(nn.AdaptiveAvgPool3d, "output_size")),
    ((functional.dropout, torch.dropout), _dropout(nn.Dropout)),
    ((functional.dropout1d,), _dropout(nn.Dropout1d)),
    ((functional.dropout2d,), _dropout(nn.Dropout2d)),
    ((functional.dropout3d,), _dropout(nn.Dropout3d)),
    ((torch.mean, "mean"), _mean),
    ((torch.abs, torch.absolute, abs, operator.abs, "abs", "abs_", "absolute"), _activation(Absolute)),
    ((torch.clamp, torch.clip, "clamp", "clamp_", "clip", "clip_"), _clamp("min", "max")),
    ((torch.clamp_min, "clamp_min", "clamp_min_"), _clamp("min")),
    ((torch.clamp_max, "clamp_max", "clamp_max_"), _clamp("max")),
    ((torch.amax, "amax"), _extreme(least=False)),
    ((torch.amin, "amin"), _extreme(least=True)),
    ((functional.interpolate, functional.upsample), _interpolate),
)
BUILDERS: dict[object, Callable[..., nn.Module | None]] = {name: build for names, build in _PAIRS for name in names}


# The remedy for functions that have no constant as they are called.
ADVICE: dict[object, str] = {
    **dict.fromkeys((torch.max, "max"), "use amax, which gives no positions, over other axes than the batch"),
    **dict.fromkeys((torch.min, "min"), "use amin, which gives no positions, over other axes than the batch"),
    **dict.fromkeys((torch.amax, "amax", torch.amin, "amin"), "take it over other axes than the batch"),
    **dict.fromkeys((torch.clamp, "clamp", torch.clip, "clip"), "cut at numbers"),
    functional.interpolate: "use mode='nearest' with whole scale factors and without a size",
}


def reads_shape(node: fx.Node) -> bool:
    """Whether a node reads only shapes: one of a tensor, or an entry of one, or arithmetic with such numbers."""
    if node.target in SHAPES or (node.target is getattr and node.args[1] in SHAPES):
        return True
    arguments = node.all_input_nodes
    return node.op == "call_function" and bool(arguments) and all(map(reads_shape, arguments))


def keeps_values(given: Sequence[object], body: nn.Module) -> bool:
    """Whether no argument is a type of whole numbers, to which values would be rounded, or a tensor of one."""
    return all(map(partial(_is_of_real_numbers, body), given))


def _is_of_real_numbers(body: nn.Module, value: object) -> bool:
    if isinstance(value, fx.Node) and value.target is getattr and value.args[1] == "dtype":
        value = value.args[0]
    if isinstance(value, fx.Node) and value.op == "get_attr":
        value = operator.attrgetter(str(value.target))(body)
    dtype = value.dtype if isinstance(value, torch.Tensor) else value
    return not isinstance(dtype, torch.dtype) or dtype.is_floating_point


def gives_several(node: fx.Node) -> bool:
    """Whether a node gives a tuple of tensors: the parts of one, or some of these parts."""
    if node.target is operator.getitem and isinstance(node.args[1], slice) and isinstance(node.args[0], fx.Node):
        return gives_several(node.args[0])
    return node.target in SEVERAL


def is_static_index(index: object) -> bool:
    """Whether an index only cuts out entries: numbers, slices, ellipsis, None; lists and tensors may repeat them."""
    if isinstance(index, tuple):
        return all(map(is_static_index, index))
    return index is None or index is Ellipsis or isinstance(index, int | slice)


def is_zero_padding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether functional.pad adds a constant (and cuts or keeps the rest)."""
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    return mode == "constant"


def name_of(target: object) -> str:
    """The name of a function or method, for the report."""
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def is_real(value: object) -> bool:
    """Whether a value is a plain number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a factor is a plain number other than zero."""
    return is_real(value) and value != 0
