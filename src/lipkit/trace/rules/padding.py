"""Padding: a gather, and what it was made from for the convolution behind it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lipkit import linops
from lipkit.linops import Padding
from lipkit.trace.builder import Builder, Padded, Ref
from lipkit.trace.rules._registry import Sample, lowers
from lipkit.trace.rules.moving import moved

aten = torch.ops.aten


def _x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@lowers(
    aten.pad.default,
    samples=lambda: [
        Sample((_x(1, 2, 4), [1, 2])),
        Sample((_x(1, 2, 4), [1, -1], "constant", 2.5)),
        Sample((_x(1, 2, 4, 5), [1, 2, 2, 1], "reflect")),
        Sample((_x(1, 2, 4, 5), [1, 2, 0, 1], "replicate")),
        Sample((_x(1, 2, 4, 5), [1, 2, 2, 1], "circular")),
        Sample((_x(1, 2, 4), [0, 0])),
    ],
)
def pad(b: Builder, x: Any, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """The last axes extended, by a constant or by entries of their own."""
    if not any(widths):
        return x
    if min(widths) < 0 or value not in (None, 0):
        return moved(b, aten.pad.default, (x, list(widths), mode, value), {}, at=(0,))
    # torch lists the last axis first.
    sides = tuple((widths[k - 1], widths[k]) for k in range(len(widths) - 1, 0, -2))
    kind = Padding.ZEROS if mode == "constant" else Padding(mode)
    return b.remember(b.linear(linops.pad(x.shape, sides, kind), x), Padded(x, sides, kind))


@lowers(aten.constant_pad_nd.default, samples=lambda: [Sample((_x(1, 4), [1, 2], 3.0)), Sample((_x(1, 1, 4), [1, 2]))])
def constant_pad(b: Builder, x: Ref, widths: Sequence[int], value: float = 0) -> Any:
    """The last axes extended by a constant."""
    return pad(b, x, widths, "constant", value)
