"""Norms of weights on inputs of every size, as sharp as a decision needs them."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops import Conv
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.filter_gram import absolute_gram, split_phases, twice_gram
from lipkit.nn.methods._arithmetic.majorant import majorant
from lipkit.nn.methods._arithmetic.symbol_supremum import on_grid, supremum
from lipkit.norms import KernelIsometry
from lipkit.rounding.slacks import ROUNDINGS_8

# The most work for one bound, in products of numbers: a quick look at frequencies, a long one, and sums.
_LOOK = 2**26
_WORK = 2**30
_GRAM = 2**28
# Products that one frequency costs whatever its size.
_FREQUENCY = 20_000
# A bound by sums is this much above the spectral radius, which leaves positive weights.
_ABOVE = 1 + 1e-7
_MOST_STEPS = 6
# The slack of the grid in methods that divide by a norm.
_SLACK = 0.01


def norm_on_every_size(blocks: Float64[Tensor, "groups rows cols *taps"], geometry: Geometry, enough: float) -> float:
    """An upper bound of the l2 norm of every layer with these blocks, whatever the size of its input.

    With zero padding a layer is a section of the convolution on the infinite grid, and a circle samples its symbol, so
    sup_w ||E(w)|| bounds both; strides become phases. That is bounded in several ways, cheap ones first, until one of
    them is at most `enough`:
      - by the residual of W'W to the identity, sharp for isometries;
      - by the spectral radius of the sums over shifts of |M_ij|, M a power of W'W, which is at most 1 for the weights
        of AOL and Rescale; by weighted row sums, so for any weights that are positive;
      - by frequencies, dense where the symbol is large.
    A weight with an entry above `enough` has a norm above it, and is not looked at further: infinity.

    Guarantee: an upper bound, all rounding counted. Cost: one filter Gram if that is enough, some seconds otherwise.
    """
    kernel = split_phases(blocks, geometry)
    if float(kernel.abs().max()) > enough:
        return math.inf
    best = math.inf
    for bound in _bounds(kernel, enough):
        best = min(best, bound)
        if best <= enough:
            break
    return best


def _bounds(kernel: Float64[Tensor, "groups rows cols *taps"], enough: float) -> Iterator[float]:
    groups, _, _, *taps = kernel.shape
    still = Conv(kernel.flatten(0, 1), tuple(taps), (1,) * len(taps), ((0, 0),) * len(taps), (1,) * len(taps), groups)
    yield float(KernelIsometry()(still).value)
    sides = kernel, kernel.transpose(1, 2)
    for side in sides:
        yield _by_sums(side, 1)
    quick = supremum(kernel, enough, _points(kernel, _LOOK))
    yield quick.upper
    if quick.lower <= enough:
        yield on_grid(kernel, _SLACK, _points(kernel, _WORK))
        for steps in range(2, _MOST_STEPS + 1):
            for side in sides:
                if _work(side, steps) <= _GRAM:
                    yield _by_sums(side, steps)
        yield supremum(kernel, enough, _points(kernel, _WORK)).upper


def _points(kernel: Float64[Tensor, "groups rows cols *taps"], work: int) -> int:
    """The number of frequencies that this much work pays for."""
    groups, rows, cols = kernel.shape[:3]
    return work // (groups * (rows * cols * min(rows, cols) + _FREQUENCY))


def _work(kernel: Float64[Tensor, "groups rows cols *taps"], steps: int) -> int:
    """The number of products in the last of `steps` filter Grams."""
    groups, _, cols, *taps = kernel.shape
    return groups * cols**3 * math.prod(((t - 1) * 2 ** (steps - 1) + 1) ** 2 for t in taps) // 2


def _by_sums(kernel: Float64[Tensor, "groups rows cols *taps"], steps: int) -> float:
    """The root of the largest number of `majorant`, with the weights q for which it is smallest, or nearly so.

    With S_ij the sums over shifts of |M_ij| the weighted row sums are (S q)_i / q_i, and q = (r - S)^(-1) 1, which is
    positive for r above the spectral radius, has S q < r q in every row.
    """
    power = kernel
    for _ in range(steps - 1):
        power = twice_gram(power)
        # Only quotients count, and powers must not leave the range of numbers.
        power = power / power.abs().amax().clamp(min=1e-300)
    sums = absolute_gram(power)
    level = (torch.linalg.eigvalsh(sums).amax(1) * _ABOVE).clamp(min=1e-300)[:, None, None]
    eye = torch.eye(sums.shape[1], dtype=sums.dtype, device=sums.device)
    ones = torch.ones_like(sums[..., :1])
    # In units of r all weights are at least 1; rounding must not make them less than positive.
    q = torch.linalg.solve(eye - sums / level, ones).squeeze(2).clamp(min=0.5)
    return math.sqrt(float(majorant(kernel, steps, q).max())) * (1 + ROUNDINGS_8)
