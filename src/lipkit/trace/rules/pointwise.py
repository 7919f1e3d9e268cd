"""Scalar functions applied to every entry."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lipkit.rounding.slacks import SOFTPLUS_THRESHOLDS, softplus_jumps
from lipkit.trace.network import Builder, Ref, Refusal, constant
from lipkit.trace.nodes import Activation, Pointwise
from lipkit.trace.nodes.activations.exponential_linear import SELU, celu, elu
from lipkit.trace.nodes.activations.gated import GELU, HARDSWISH, swish
from lipkit.trace.nodes.activations.gelu_tanh import GELU_TANH
from lipkit.trace.nodes.activations.mish import MISH
from lipkit.trace.nodes.activations.periodic import COS, SIN
from lipkit.trace.nodes.activations.powers import (
    COSH,
    EXP,
    EXPM1,
    LOG,
    LOG1P,
    LOG2,
    LOG10,
    RECIPROCAL,
    RSQRT,
    SINH,
    SQRT,
    SQUARE,
    exponential,
    power,
)
from lipkit.trace.nodes.activations.sigmoids import (
    ASINH,
    ATAN,
    ERF,
    HARDSIGMOID,
    LOGSIGMOID,
    SIGMOID,
    TANH,
    softplus,
)
from lipkit.trace.nodes.pointwise import ABS, RELU, clamp, leaky_relu, prelu, softshrink
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.arithmetic import combination

aten = torch.ops.aten


def _line() -> Tensor:
    """Both sides of 0, through all bends, with a batch axis of 1."""
    return torch.linspace(-6, 6, 4001, dtype=torch.float64)[None]


def _positive() -> Tensor:
    return torch.linspace(0.25, 6, 1001, dtype=torch.float64)[None]


def _entrywise(b: Builder, activation: Activation, x: Ref) -> Ref:
    return b.node(Pointwise(activation, x.shape), x)


def _require_finite(*slopes: float) -> None:
    if not all(map(math.isfinite, slopes)):
        raise Refusal("has a slope that is infinite or NaN, so it has no Lipschitz constant", "repair the parameters")


def _plain(op: OpOverload, activation: Activation, x: Callable[[], Tensor] = _line) -> None:
    """Register an operation without parameters."""

    def rule(b: Builder, x: Ref) -> Ref:
        return _entrywise(b, activation, x)

    _ = lowers(op, samples=lambda: [Sample((x(),))])(rule)


for _op, _activation in (
    (aten.relu.default, RELU),
    (aten.relu6.default, clamp(0.0, 6.0)),
    (aten.abs.default, ABS),
    (aten.selu.default, SELU),
    (aten.silu.default, swish()),
    (aten.mish.default, MISH),
    (aten.log_sigmoid.default, LOGSIGMOID),
    (aten.sigmoid.default, SIGMOID),
    (aten.tanh.default, TANH),
    (aten.hardsigmoid.default, HARDSIGMOID),
    (aten.hardswish.default, HARDSWISH),
    (aten.erf.default, ERF),
    (aten.special_erf.default, ERF),
    (aten.atan.default, ATAN),
    (aten.arctan.default, ATAN),
    (aten.asinh.default, ASINH),
    (aten.sin.default, SIN),
    (aten.cos.default, COS),
    (aten.exp.default, EXP),
    (aten.exp2.default, exponential(2.0)),
    (aten.expm1.default, EXPM1),
    (aten.sinh.default, SINH),
    (aten.cosh.default, COSH),
    (aten.square.default, SQUARE),
):
    _plain(_op, _activation)

for _op, _activation in (
    (aten.sqrt.default, SQRT),
    (aten.rsqrt.default, RSQRT),
    (aten.reciprocal.default, RECIPROCAL),
    (aten.log.default, LOG),
    (aten.log2.default, LOG2),
    (aten.log10.default, LOG10),
    (aten.log1p.default, LOG1P),
):
    _plain(_op, _activation, _positive)


@lowers(aten.erfc.default, samples=lambda: [Sample((_line(),))])
def _erfc(b: Builder, x: Ref) -> Ref:
    """1 - erf(x)."""
    return combination(b, [(1.0, 1), (_entrywise(b, ERF, x), -1)])


@lowers(aten.leaky_relu.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 1.5)), Sample((_line(), -0.5))])
def _leaky_relu(b: Builder, x: Ref, negative_slope: float = 0.01) -> Ref:
    """Slopes between 1 and the given one."""
    _require_finite(negative_slope)
    return _entrywise(b, leaky_relu(negative_slope), x)


@lowers(aten.rrelu.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 0.2, 0.5))])
def _rrelu(
    b: Builder, x: Ref, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, g: Any = None
) -> Ref:
    """In evaluation mode a leaky relu with the mean slope."""
    if training or g is not None:
        raise Refusal("draws its slopes at random in training mode", "switch the module to evaluation mode")
    return _entrywise(b, leaky_relu((lower + upper) / 2), x)


def _channels() -> list[Sample]:
    return [
        Sample((torch.randn(1, 3, 50), torch.tensor([0.25, -0.5, 2.0]))),
        Sample((torch.randn(1, 3), torch.tensor([0.25, -0.5, 2.0]))),
        Sample((torch.randn(1, 3, 2), torch.tensor([0.5]))),
    ]


@lowers(aten.prelu.default, samples=_channels)
def _prelu(b: Builder, x: Ref, weight: Any) -> Ref:
    """One slope for all entries, or one for each channel (axis 1)."""
    slope = constant(weight, "the slope")
    _require_finite(*slope.detach().flatten().tolist())
    # A slope for each channel gets an axis for every one behind; a single slope broadcasts as it is.
    return _entrywise(b, prelu(slope.reshape(-1, *(1,) * max(0, len(x.shape) - 2))), x)


def _cuts() -> list[Sample]:
    return [Sample((_line(), -1.0, 2.5)), Sample((_line(), 0)), Sample((_line(), None, 1.0)), Sample((_line(), 2, 1))]


@lowers(aten.clamp.default, aten.clip.default, samples=_cuts)
def _clamp(b: Builder, x: Ref, min: float | None = None, max: float | None = None) -> Ref:
    """Cut to an interval."""
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    if math.isnan(low) or math.isnan(high):
        raise Refusal(f"cuts to [{low:g}, {high:g}], which makes everything NaN", "give it numbers as ends")
    return _entrywise(b, clamp(low, high), x)


@lowers(aten.clamp_min.default, samples=lambda: [Sample((_line(), -1.0))])
def _clamp_min(b: Builder, x: Ref, min: float) -> Ref:
    """Cut from below."""
    return _clamp(b, x, min)


@lowers(aten.clamp_max.default, samples=lambda: [Sample((_line(), 1))])
def _clamp_max(b: Builder, x: Ref, max: float) -> Ref:
    """Cut from above."""
    return _clamp(b, x, None, max)


@lowers(aten.hardtanh.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 0.0, 6.0))])
def _hardtanh(b: Builder, x: Ref, min_val: float = -1.0, max_val: float = 1.0) -> Ref:
    """Cut to an interval."""
    return _clamp(b, x, min_val, max_val)


@lowers(aten.threshold.default, samples=lambda: [Sample((_line(), 0.5, 0.5))])
def _threshold(b: Builder, x: Ref, threshold: float, value: float) -> Ref:
    """x above the threshold, the value below: continuous only if they are the same number."""
    if threshold != value:
        raise Refusal(
            f"jumps from {value:g} to {threshold:g} at its threshold, so it has no Lipschitz constant",
            "give it the threshold as its value, or use relu or softshrink",
        )
    return _clamp(b, x, threshold)


@lowers(aten.softshrink.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 1.5))])
def _softshrink(b: Builder, x: Ref, lambd: float = 0.5) -> Ref:
    """Moved towards 0."""
    return _entrywise(b, softshrink(float(lambd)), x)


@lowers(aten.elu.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 1.5, 0.5, 2.0))])
def _elu(b: Builder, x: Ref, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Ref:
    """Exponential below 0, linear above."""
    return _entrywise(b, elu(float(alpha), float(scale), float(input_scale)), x)


@lowers(aten.celu.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 0.5))])
def _celu(b: Builder, x: Ref, alpha: float = 1.0) -> Ref:
    """Exponential below 0, linear above, with one slope at 0.

    torch divides by alpha first. Where that leaves the normal numbers for inputs of ordinary size, what it computes is
    steeper than the function: 1.12 with alpha 1e30 in float32. Up to 1 / eps it happens below eps^-1 of the smallest
    normal number only.
    """
    if not alpha <= 1 / torch.finfo(b.dtype).eps:
        raise Refusal(
            f"divides by alpha {alpha:g} first, which loses the digits of small inputs in {b.dtype}",
            "use the identity, which it is for such an alpha, or a smaller one",
        )
    return _entrywise(b, celu(float(alpha)), x)


@lowers(aten.gelu.default, samples=lambda: [Sample((_line(),)), Sample((_line(),), {"approximate": "tanh"})])
def _gelu(b: Builder, x: Ref, *, approximate: str = "none") -> Ref:
    """By the error function, or by its tanh form."""
    return _entrywise(b, GELU_TANH if approximate == "tanh" else GELU, x)


@lowers(aten.softplus.default, samples=lambda: [Sample((_line(),)), Sample((_line(), 2.0))])
def _softplus(b: Builder, x: Ref, beta: float = 1, threshold: float = 20) -> Ref:
    """log(1 + exp(beta x)) / beta; beyond the threshold torch returns x, which is too small by exp(-threshold) / beta.

    That is a way of rounding as long as float32 would round the true value as much (`softplus_jumps`): at the defaults
    the step is 2e-9 in a number of 20, whose last place in float32 is 2e-6. In float64 it can be seen. The constant is
    that of the function without step.
    """
    if softplus_jumps(float(beta), float(threshold)):
        least, largest = SOFTPLUS_THRESHOLDS
        raise Refusal(
            f"jumps at its threshold of {threshold:g} by more than float32 rounds, or overflows before it, with beta "
            f"{beta:g}",
            f"take a threshold from {least:g} to {largest:g} and beta not near 0, or lipkit.nn.Softplus, which does "
            "not switch",
        )
    return _entrywise(b, softplus(float(beta)), x)


@lowers(
    aten.pow.Tensor_Scalar,
    samples=lambda: [Sample((_positive(), e)) for e in (0.5, -1.5, 1, 0)] + [Sample((_line(), e)) for e in (2, 3, 4.0)],
)
def _pow(b: Builder, x: Ref, exponent: float) -> Ref:
    """A power."""
    return x if exponent == 1 else _entrywise(b, SQUARE if exponent == 2 else power(float(exponent)), x)


@lowers(aten.pow.Scalar, samples=lambda: [Sample((base, _line()), wrt=(1,)) for base in (2.0, 0.5, 1)])
def _exponential(b: Builder, base: float, x: Ref) -> Ref:
    """An exponential."""
    return _entrywise(b, power(0.0) if base == 1 else exponential(float(base)), x)
