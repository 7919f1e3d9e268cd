"""Spectral rescaling: each input channel divided by what its correlations add up to."""

import enum
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import room_for
from lipkit.nn.methods._arithmetic.filter_gram import absolute_gram, merge_phases, split_phases
from lipkit.nn.methods._arithmetic.majorant import majorant
from lipkit.nn.methods._arithmetic.rescaling_step import (
    inverse_root,
    largest,
    one_step,
    over_taps,
    scale_for_room,
    worth_it,
)
from lipkit.nn.methods._base import Blocks, WeightMethod

# Rounds of the fixed point behind `inverse`, each a product of small matrices, or with more steps a whole rescaling.
_ROUNDS = 1000
_COSTLY_ROUNDS = 40
# The smallest factor of a channel, in units of its size relative to the largest channel.
_SMALLEST_SHARE = 2.0**-10


class RescaledSide(enum.Enum):
    """The side of a weight that is rescaled; the value is how it prints."""

    # The columns, as published: the input channels (with a stride, each phase of them) of a matrix or a convolution.
    COLUMNS = "columns"
    # The side with fewer channels, which has fewer correlations to add up: a wide isometry is left as it is.
    SMALLER = "smaller side"


@final
@dataclass(frozen=True)
class Rescale(WeightMethod):
    """W R with the diagonal R_i = T_i^(-1/2) and W'W <= diag(T), from `steps` Gram products; see `rescale_channels`.

        T_i = (sum_{j, shifts} |M_ij|)^(1 / 2^(steps - 1)),   M = (W'W)^(2^(steps - 1))

    One step is `AOL`; the more there are, the nearer R is to 1/||W||, spectral normalisation: every step about halves
    what is missing to norm 1, and the smaller singular values fall further behind.

    Guarantee: norm at most 1 as stored, for zero and circular padding of every size, strides (through phases: each
    input channel has a factor for each residue of its taps), dilation, groups and transposed convolutions.
    Cost: correlations of all pairs of taps, half of them by symmetry: n^2 m taps^2 / 2 products for the first step, and
    for every further one n^3 times half the squared number of taps, which is multiplied by about 2^axes each time.
    Gradient: exact. `inverse` finds the free numbers of any weight that Rescale made; of others, those of a multiple.
    Published forms have weights q_j / q_i in the sums, any q > 0. With one step they are the sizes of the columns of
    the free numbers, which are learnt anyway: W diag(q) rescaled is W rescaled with q. With more they would be numbers
    beside the weight, which a method does not have: here q = 1, and `SLL` learns them.
    Reference: Delattre 2025 (spectral rescaling); factors for each phase, and the rounding, are ours.

    Args:
        steps: Gram products, 1 to 6.
        side: Side of the weight that is rescaled.
    """

    scale_free = True

    steps: int = 2
    side: RescaledSide = RescaledSide.COLUMNS

    def __post_init__(self) -> None:
        if not 1 <= self.steps <= 6:
            raise ArgumentError(
                f"Rescale.steps must lie in 1..6, got {self.steps}; use Spectral for the limit of many."
            )

    def __str__(self) -> str:
        return f"rescaling, {_describe(self.steps, self.side)}"

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        return rescale_channels(raw, geometry, self.steps, self.side)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        return self.at_free_size(unscale_channels(weight, geometry, self.steps, self.side))


def _describe(steps: int, side: RescaledSide) -> str:
    tail = "" if side is RescaledSide.COLUMNS else f" on the {side.value}"
    return f"{steps} step{'s' if steps > 1 else ''}{tail}"


def rescale_channels(raw: Blocks, geometry: Geometry, steps: int, side: RescaledSide) -> Blocks:
    """The weights of `Rescale` and `AOL`: every channel i times T_i^(-1/2); channels of zeros stay zero.

    So does, in float32, what is about 2^-38 times the largest entry of its block, with more than one step 2^-24 times;
    in blocks whose entries are all below 2^-60, so many times that. Derivatives grow with the inverse of a channel, and
    would leave the range of its numbers.
    """
    kernel = split_phases(raw, geometry)
    flipped = _is_flipped(kernel, side)
    tall = kernel.transpose(1, 2) if flipped else kernel
    room = room_for(geometry.rows, geometry.cols, math.prod(geometry.taps), raw.dtype)
    if steps == 1 and worth_it(tall):
        found = one_step(tall, room)
    else:
        level = tall / largest(tall.detach())
        sums = majorant(level, steps, scale=scale_for_room(room))
        found = level * over_taps(inverse_root(sums, raw.dtype), level)
    return merge_phases(found.transpose(1, 2) if flipped else found, geometry)


def unscale_channels(
    weight: Float64[Tensor, "groups rows cols *taps"], geometry: Geometry, steps: int, side: RescaledSide
) -> Blocks:
    """W D for which `rescale_channels` gives W / c: D is the positive fixed point of D -> T(W D)^(1/2), up to c.

    For one step, T(W D) = D |M| D: D is the Perron vector of |M| and c^2 its eigenvalue, which is 1 exactly for the
    weights that one step can make. For an isometry D = 1.
    """
    kernel = split_phases(weight, geometry)
    flipped = _is_flipped(kernel, side)
    tall = kernel.transpose(1, 2) if flipped else kernel
    groups, _, cols = tall.shape[:3]
    scale = torch.ones(groups, cols, dtype=torch.float64, device=weight.device)
    size = torch.linalg.vector_norm(tall, dim=(1, *range(3, tall.ndim)))
    dead = size == 0
    # Channels that do not correlate with the largest would fall to zero, although any factor gives them norm one.
    least = torch.where(dead, 1.0, _SMALLEST_SHARE * size.amax(1, keepdim=True) / size).clamp(max=1.0)
    sums = absolute_gram(tall) if steps == 1 else None
    for _ in range(_ROUNDS if steps == 1 else _COSTLY_ROUNDS):
        if sums is not None:
            square = scale * (sums @ scale[..., None]).squeeze(-1)
        else:
            square = majorant(tall * over_taps(scale, tall), steps)
        # Overstepping by a half takes half as many rounds as the plain fixed point.
        found = torch.where(dead | torch.isinf(square), 1.0, scale * (square / scale.square()).pow(0.75))
        found = torch.maximum(found / found.amax(1, keepdim=True), least)
        done = bool((found - scale).abs().amax() < (1e-13 if steps == 1 else 1e-8))
        scale = found
        if done:
            break
    wide = tall * over_taps(scale, tall)
    return merge_phases(wide.transpose(1, 2) if flipped else wide, geometry)


def _is_flipped(kernel: Float[Tensor, "groups rows phased *lengths"], side: RescaledSide) -> bool:
    return side is RescaledSide.SMALLER and kernel.shape[1] < kernel.shape[2]


@final
@dataclass(frozen=True)
class AOL(WeightMethod):
    """W R with R_i = (sum_{j, shifts} |M_ij|)^(-1/2), M the Gram matrix W'W or the filter Gram of a kernel.

    M_ij at a shift is the correlation of input channels i and j, summed over outputs. W'W <= R^(-2) because a matrix is
    dominated by the sums of its absolute rows. An orthogonal weight stays what it is, and training tends to weights
    whose channels correlate little; of a random kernel little is left (docs/benchmarks.md). Rescale(1) is the same.

    Guarantee: norm at most 1 as stored, for zero and circular padding of every size, strides (through phases),
    dilation, groups and transposed convolutions. Cost: n^2 m taps^2 / 2 products. Gradient: exact.
    Reference: Prach and Lampert 2022; the convolution as printed by Delattre 2025 has a wrong index and exponent
    (docs/errata.md). Factors for each phase of a stride, and the rounding, are ours.

    Args:
        side: Side of the weight that is rescaled.
    """

    scale_free = True

    side: RescaledSide = RescaledSide.COLUMNS

    def __str__(self) -> str:
        return "AOL" if self.side is RescaledSide.COLUMNS else f"AOL on the {self.side.value}"

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        return rescale_channels(raw, geometry, 1, self.side)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        return self.at_free_size(unscale_channels(weight, geometry, 1, self.side))
