"""Precision of weights: the types they are computed, stored and used in, and the room that rounding needs."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit._compilers import constant_for_compilers, is_compiling
from lipkit._runtime import is_reading
from lipkit.linops import Shape
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_16, ROUNDINGS_8192, UNIT, UNIT_OF

# The factor on a weight before it is rounded to so few digits: more than rounding an isometry adds to its norm
# (2.3e-3 in bfloat16, 2.9e-4 in float16, at every width), less than it can add to weights chosen for the purpose, and
# now and then to kernels on a small torus (4.2e-3 on 4 x 4). `worst_norm` is what holds.
_MARGIN = {torch.bfloat16: 1 - 2.0**-8, torch.float16: 1 - 2.0**-10}
# Half of the spacing of numbers below the smallest normal one.
_SUBNORMAL = {
    torch.bfloat16: 2.0**-134,
    torch.float16: 2.0**-25,
    torch.float32: 2.0**-150,
    torch.float64: 2.0**-1075,
}


def in_full_precision(fn: Callable[[Tensor], Tensor], raw: Tensor) -> Tensor:
    """fn(raw), computed in float32 or complex64 at least, whatever autocast says, in the type a layer multiplies with.

    That is the type of `raw`, or autocast's where it is on. Room is made for rounding to fewer digits than float32.
    """
    target = dtype_in_use(raw)
    with uncast(raw.device.type):
        return narrow_weight(fn(_wide(raw)), target)


def uncast(device: str) -> AbstractContextManager[object]:
    """Autocast switched off where it is on; nothing elsewhere, because exports keep a graph apart for every switch."""
    return torch.autocast(device, enabled=False) if _autocast(device) else nullcontext()


def dtype_in_use(raw: Tensor) -> torch.dtype:
    """The type a layer multiplies with: that of its numbers, or autocast's, which leaves float64 and complex alone."""
    device = raw.device.type
    if _autocast(device) and raw.dtype != torch.float64 and not raw.dtype.is_complex:
        return torch.get_autocast_dtype(device)
    return raw.dtype


def _autocast(device: str) -> bool:
    # Tensors without numbers have no autocast, and torch refuses to be asked.
    return device != "meta" and torch.is_autocast_enabled(device)


def exact_products(of: Tensor) -> bool:
    """Whether torch multiplies matrices like this one with all their digits: float32 may be told to use fewer.

    Not known, so not promised, in programs compiled for a CPU: they are not compiled again when its setting changes.
    What `lipkit.trace` reads is not compiled, and must be computed as it is without a compiler.
    """
    if of.dtype == widest(of.dtype):
        return True
    on_cpu = of.device.type == "cpu"
    return not (on_cpu and is_compiling() and not is_reading()) and _exact(on_cpu)


# Compilers cannot read the setting; for CUDA they compile again when it is changed.
@constant_for_compilers
def _exact(on_cpu: bool) -> bool:
    # torch sets this attribute of the module where no checker sees it.
    backend = torch.backends.mkldnn.matmul if on_cpu else torch.backends.cuda.matmul  # pyright: ignore[reportAttributeAccessIssue]
    return backend.fp32_precision in ("none", "ieee")


def narrow_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight of norm at most one in `dtype`, smaller by a margin where the type has few digits."""
    margin = _MARGIN.get(dtype)
    return weight.to(dtype) if margin is None else (weight * margin).to(dtype)


def worst_norm(shape: Shape, dtype: torch.dtype) -> float:
    """The largest norm that `narrow_weight` can give a weight of norm one; 1 where its method counts rounding.

    With blocks of `shape` = (groups, rows, cols, *taps), margin (1 + u sqrt(taps max(rows, cols))) and what underflows:
    the argument of `shrink`.
    """
    if dtype not in _MARGIN:
        return 1.0
    return max(1.0, _MARGIN[dtype] * (1 + _rounding_loss(shape, dtype)) * (1 + FLOAT32_ROUNDINGS_16))


def shrink(rows: int, cols: int, taps: int, dtype: torch.dtype) -> float:
    """A factor c < 1 such that rounding c W to `dtype` leaves an operator of norm at most ||W|| <= 1.

    Rounding changes each entry by at most u times itself, so the operator by E with
        ||E|| <= sum over taps of ||E_t||_F <= u sqrt(taps) ||W||_F <= u sqrt(taps max(rows, cols)) ||W||,
    the last because the mean over all frequencies of the squared Frobenius norm of the symbol is ||W||_F^2. Four more
    units cover the product with c and this formula.
    """
    return 1 - unit_of(dtype) * (math.sqrt(taps * max(rows, cols)) + 4)


def room_for(rows: int, cols: int, taps: int, dtype: torch.dtype) -> float:
    """The factor by which a float64 weight of norm at most 1 + 2^-40 has norm at most 1 when rounded to `dtype`."""
    return shrink(rows, cols, taps, dtype) * (1 - 2 * ROUNDINGS_8192)


def store(
    weight: Inexact[Tensor, "groups rows cols *taps"], dtype: torch.dtype
) -> Inexact[Tensor, "groups rows cols *taps"]:
    """A float64 weight of norm at most 1 + 2^-40, in `dtype`, with norm at most 1."""
    rows, cols, *taps = weight.shape[1:]
    return (weight * room_for(rows, cols, math.prod(taps), dtype)).to(dtype)


def rooms(shape: Shape, dtype: torch.dtype) -> tuple[float, ...]:
    """By how much a weight of norm one may be made smaller before it is rounded, the least first.

    What rounding adds to weights that come up is less than the first, what it adds to any is less than the last. In
    float32 and float64 all are more than that, and hold what methods lose by computing in float64: n (rows + n) units,
    n^2 (rows + n) where they bound a norm by sums, and 2^-20 for iterations that end where they are near.
    """
    lost = _rounding_loss(shape, dtype)
    if dtype in _MARGIN:
        least = 1 / _MARGIN[dtype] - 1
        return least, max(least, 2 * lost)
    _, rows, cols, *axes = shape
    sides = rows, cols * math.prod(axes)
    products = UNIT * min(sides) * (sum(sides) + 16)
    least = lost + 4 * unit_of(dtype) + 16 * products
    more = 64 * least + 8 * min(sides) * products
    return least, more, more + FLOAT32_ROUNDINGS_16


def unit_of(dtype: torch.dtype) -> float:
    """The relative rounding error of a floating type."""
    return UNIT_OF[dtype]


def widest(dtype: torch.dtype) -> torch.dtype:
    """The type in which the last step of a method is computed: float64, or complex128 for complex numbers."""
    return torch.complex128 if dtype.is_complex else torch.float64


def _rounding_loss(shape: Shape, dtype: torch.dtype) -> float:
    """The most that rounding adds to the norm of a weight of norm one."""
    _, rows, cols, *axes = shape
    taps = math.prod(axes)
    # Of a complex number both parts may vanish.
    least = _SUBNORMAL[dtype.to_real()] * (2 if dtype.is_complex else 1)
    return unit_of(dtype) * math.sqrt(taps * max(rows, cols)) + least * taps * math.sqrt(rows * cols)


def _wide(raw: Tensor) -> Tensor:
    # Methods compute in complex64 as they are; not by torch.promote_types, which is an operation of its own.
    return raw if raw.dtype == torch.float64 or raw.dtype.is_complex else raw.to(torch.float32)
