"""Hypothesis strategies for constrained linear layers in every geometry torch offers, with the shape of an input."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import LipkitError
from lipkit.linops import Shape
from lipkit.nn import WeightMethod
from lipkit.nn.methods.fourier._base import FourierMethod
from support.operators.conv_geometries import LIMIT, LONGEST, built

CONV = {1: lnn.Conv1d, 2: lnn.Conv2d, 3: lnn.Conv3d}
CONV_TRANSPOSE = {1: lnn.ConvTranspose1d, 2: lnn.ConvTranspose2d, 3: lnn.ConvTranspose3d}
MODES = ("zeros", "zeros", "circular", "reflect", "replicate")
_WIDEST = {1: 5, 2: 3, 3: 2}
_LONGEST_TRANSPOSED = {1: 4, 2: 4, 3: 2}


class Drawn(NamedTuple):
    """A layer, or why it was refused, and the shape of one input."""

    layer: Any
    refusal: str
    in_shape: Shape


def _rank_one(raw: Tensor) -> Tensor:
    rows = raw.flatten(1)
    return (rows[:, :1] * rows[:1]).reshape(raw.shape)


# What free numbers may be. The worst kernels of almost every bound have equal or alternating taps.
FILLS: dict[str, Callable[[Tensor], Tensor]] = {
    "as started": torch.clone,
    "normal": torch.randn_like,
    "moved": lambda raw: raw + 0.3 * torch.randn_like(raw),
    "equal": torch.ones_like,
    "alternating": lambda raw: 1 - 2.0 * (torch.arange(raw.numel()) % 2).reshape(raw.shape).to(raw),
    "rank one": _rank_one,
    "zero": torch.zeros_like,
    "huge": lambda raw: 1e30 * torch.randn_like(raw),
    "tiny": lambda raw: 1e-37 * torch.randn_like(raw),
    # Subnormal in float32 and bfloat16: their inverses are infinite there.
    "denormal": lambda raw: 1e-40 * torch.randn_like(raw),
}


def filled(layer: torch.nn.Module, fill: str) -> None:
    """Set the free numbers of a constrained layer."""
    raw = layer.get_parameter("parametrizations.weight.original")
    with torch.no_grad():
        raw.copy_(FILLS[fill](raw))


@st.composite
def linear(draw: DrawFn, method: WeightMethod) -> Drawn:
    inputs, outputs = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    return _built(lambda: lnn.Linear(inputs, outputs, method=method), (inputs,))


@st.composite
def convolution(draw: DrawFn, method: WeightMethod) -> Drawn:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    spatial = tuple(draw(st.integers(2, LONGEST[rank])) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, _WIDEST[rank])) for _ in range(rank))
    stride, dilation = (tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank)) for _ in range(2))
    padding = draw(st.sampled_from(["valid", "natural", "drawn"]))
    groups = draw(st.sampled_from([1, 1, 2]))
    channels = (groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 3)))
    widths = {
        "valid": (0,) * rank,
        "natural": tuple(d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)),
        "drawn": tuple(draw(st.integers(0, min(2, n - 1))) for n in spatial),
    }[padding]
    mode = draw(st.sampled_from(MODES))
    return _built(
        lambda: CONV[rank](*channels, kernel, stride, widths, dilation, groups, padding_mode=mode, method=method),
        (channels[0], *spatial),
    )


@st.composite
def transposed(draw: DrawFn, method: WeightMethod) -> Drawn:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    spatial = tuple(draw(st.integers(1, _LONGEST_TRANSPOSED[rank])) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, min(3, _WIDEST[rank]))) for _ in range(rank))
    stride, dilation = (tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(rank)) for _ in range(2))
    padding = tuple(draw(st.integers(0, d * (k - 1) // 2)) for d, k in zip(dilation, kernel, strict=True))
    mode = draw(st.sampled_from(["zeros", "zeros", "circular"]))
    rest = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    if mode == "circular" and draw(st.integers(0, 4)):
        # Mostly what makes circles that the stride divides.
        rest = tuple(
            (2 * p - d * (k - 1) - 1) % s for p, d, k, s in zip(padding, dilation, kernel, stride, strict=True)
        )
    groups = draw(st.sampled_from([1, 1, 2]))
    channels = (groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2)))
    walk = (kernel, stride, padding, rest, groups, True, dilation, mode)
    return _built(lambda: CONV_TRANSPOSE[rank](*channels, *walk, method=method), (channels[0], *spatial))


@st.composite
def circular(draw: DrawFn, method: FourierMethod) -> Drawn:
    """Circular convolutions on the one size that the method is for, sometimes on another."""
    rank = len(method.in_size)
    other = draw(st.integers(0, 9)) == 0
    spatial = (*method.in_size[:-1], method.in_size[-1] + 1) if other else method.in_size
    kernel = tuple(draw(st.integers(1, _WIDEST[rank])) for _ in range(rank))
    dilation = tuple(draw(st.sampled_from([1, 1, 2])) for _ in range(rank))
    groups = draw(st.sampled_from([1, 1, 2]))
    channels = (groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3)))
    return _built(
        lambda: CONV[rank](*channels, kernel, 1, "same", dilation, groups, padding_mode="circular", method=method),
        (channels[0], *spatial),
    )


@st.composite
def one_tap(draw: DrawFn, method: WeightMethod, dtype: torch.dtype) -> Drawn:
    groups, rank = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 0, 1, 2]))
    inputs, outputs = draw(st.tuples(st.integers(1, 12 // (rank + 1)), st.integers(1, 12 // (rank + 1))))
    if not rank:
        return _built(lambda: lnn.Linear(inputs, outputs, dtype=dtype, method=method), (inputs,), dtype)
    channels, stride = (groups * inputs, groups * outputs), draw(st.sampled_from([1, 2]))
    return _built(
        lambda: CONV[rank](*channels, 1, stride, groups=groups, dtype=dtype, method=method),
        (channels[0], *(3,) * rank),
        dtype,
    )


def layers(method: WeightMethod) -> SearchStrategy[Drawn]:
    """Layers of every kind with this method, small enough for a dense matrix; refused ones with the reason."""
    if isinstance(method, FourierMethod):
        return built(circular(method).filter(_small))
    kinds = st.one_of(linear(method), convolution(method), convolution(method), transposed(method))
    return built(kinds.filter(_small))


def unitary(method: WeightMethod, dtype: torch.dtype) -> SearchStrategy[Drawn]:
    """Complex layers: matrices, and convolutions with one tap."""
    return built(one_tap(method, dtype))


def accepted(method: WeightMethod) -> SearchStrategy[Drawn]:
    """Those of them that the method covers."""
    return layers(method).filter(lambda drawn: drawn.layer is not None)


def _built(build: Callable[[], nn.Module], in_shape: Shape, dtype: torch.dtype = torch.float32) -> Drawn:
    try:
        layer = build()
        x = torch.zeros(1, *in_shape, dtype=dtype)
        layer(x)
    except LipkitError as error:
        return Drawn(None, str(error), in_shape)
    except RuntimeError as error:
        # torch's own refusal: the kernel does not fit, or the output would be empty.
        return Drawn(None, f"torch: {error}", in_shape)
    return Drawn(layer, "", in_shape)


def _small(drawn: Drawn) -> bool:
    if drawn.layer is None:
        return not drawn.refusal.startswith("torch:")
    with torch.no_grad():
        size = math.prod(drawn.layer(torch.zeros(1, *drawn.in_shape)).shape)
    return 0 < size <= 3 * LIMIT and math.prod(drawn.in_shape) <= 3 * LIMIT
