"""The largest norm of B D A over all diagonal D with entries in intervals: enumerated, from alignment, or guessed."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Kind
from lipkit.bounds.sdp.proof import is_positive
from lipkit.errors import NotProvenError, TooLargeError
from lipkit.norms import SVD
from lipkit.rounding.float64 import gamma, norm_up, product_error

# Matrices whose norms are taken at once.
_AT_ONCE = 4096
# Covers a handful of float64 operations on numbers >= 0.
_UP = 1 + 1e-14


@final
@dataclass(frozen=True, eq=False)
class Pair:
    """max over low <= d <= high of ||outer diag(d) inner||, low and high in [-1, 1].

    The matrices come from two layers; `inner_whole` and `outer_whole` say which of them is the layer itself, and not
    the half of one whose singular values are the square roots of the layer's.
    """

    outer: Float64[Tensor, "rows n"]
    inner: Float64[Tensor, "n cols"]
    low: Float64[Tensor, " n"]
    high: Float64[Tensor, " n"]
    inner_whole: bool = True
    outer_whole: bool = True

    def at(self, d: Float64[Tensor, "*batch n"]) -> Float64[Tensor, "*batch rows cols"]:
        """outer diag(d) inner."""
        return (self.outer * d[..., None, :]) @ self.inner


class Maximum(ABC):
    """A way to bound the largest norm of a pair."""

    @abstractmethod
    def __call__(self, pair: Pair) -> tuple[float, Kind]:
        """The number, and what it proves about the maximum: UPPER, or ESTIMATE."""


@final
@dataclass(frozen=True)
class Exhaustive(Maximum):
    """All 2^n corners: a convex function is largest at one. UPPER, exact up to rounding; for n <= `limit`."""

    limit: int = 16

    def __str__(self) -> str:
        return "all corners"

    def __call__(self, pair: Pair) -> tuple[float, Kind]:
        count = len(pair.low)
        if count > self.limit:
            raise TooLargeError(
                f"{count} neurons have 2^{count} patterns, the limit is 2^{self.limit}; use Alignment() or Greedy()."
            )
        largest = 0.0
        for first in range(0, 2**count, _AT_ONCE):
            pattern = torch.arange(first, min(first + _AT_ONCE, 2**count))
            bits = (pattern[:, None] >> torch.arange(count)) & 1
            corners = torch.where(bits.bool(), pair.high, pair.low)
            largest = max(largest, float(SVD().enclose(pair.at(corners)[None]).log_upper.exp()))
        rounding = product_error(count + 2, torch.float64) * float(norm_up(pair.outer, 2) * norm_up(pair.inner, 2))
        return (largest + rounding) * _UP, Kind.UPPER


@final
@dataclass(frozen=True)
class Alignment(Maximum):
    """From how well the leading singular vectors of the two matrices fit together:

        max ||B D A||^2 <= ||B||^2 ||A||^2 (1 - (1 - a) (1 - b) (1 - alpha)),   alpha = max over d of <v, D u>^2,

    u the leading left vector of A, v the leading right one of B, a and b the squared ratios of the second to the first
    singular value. It rests on A A* <= s (u u* + a (I - u u*)) for the approximate u at hand, which is proven, so no
    singular value decomposition is trusted. With `printed`, the published factor
    (1 - r - r') alpha + r + r' + r r' in the ratios r, r' of the layers' own singular values: valid, never smaller than
    the one above, and not even bounded by 1.

    UPPER; never above ||B|| ||A|| without `printed`. Cost: two singular value decompositions and two Cholesky proofs.
    Reference: Virmaux and Scaman 2018 for the printed form; the other one is ours.
    """

    printed: bool = False

    def __str__(self) -> str:
        return "alignment of singular vectors" + (", as printed" if self.printed else "")

    def __call__(self, pair: Pair) -> tuple[float, Kind]:
        inner, outer = dominated(pair.inner), dominated(pair.outer.mT)
        a, b, alpha = inner.ratio, outer.ratio, _alignment(pair, outer.vector, inner.vector)
        # The vectors are of length 1 up to rounding only.
        u, v = (float(norm_up(w, 1)) ** 2 for w in (inner.vector, outer.vector))
        share = (1 - a) * (1 - b) * alpha + (1 - a) * b * v + a * (1 - b) * u + a * b
        share = min(share * _UP + 4e-16, 1.0)
        if self.printed:
            r, s = (math.sqrt(x) if whole else x for x, whole in ((a, pair.inner_whole), (b, pair.outer_whole)))
            share = max(share, (1 - r - s) * alpha + r + s + r * s)
        return math.sqrt(inner.top) * math.sqrt(outer.top) * math.sqrt(share) * _UP, Kind.UPPER


@final
@dataclass(frozen=True)
class Greedy(Maximum):
    """A corner that no single improvement of the linearised norm leaves: a lower bound of the maximum, so ESTIMATE.

    From the leading singular vectors p, q of B D A the next corner is d_i = high_i where <p, B_i> <A_i, q> > 0 and
    low_i elsewhere; the norm never falls. Cost: a few singular value decompositions for each of `starts` starts.
    """

    starts: int = 4
    steps: int = 50

    def __str__(self) -> str:
        return "greedy search"

    def __call__(self, pair: Pair) -> tuple[float, Kind]:
        generator = torch.Generator().manual_seed(0)
        best = 0.0
        for start in range(self.starts):
            coins = torch.rand(len(pair.low), generator=generator) < 0.5
            d = pair.high if start == 0 else torch.where(coins, pair.high, pair.low)
            found = -1.0
            for _ in range(self.steps):
                left, values, right = torch.linalg.svd(pair.at(d), full_matrices=False)
                if float(values[0]) <= found * (1 + 1e-12):
                    break
                found = float(values[0])
                along = (left[:, 0] @ pair.outer) * (pair.inner @ right[0])
                d = torch.where(along > 0, pair.high, pair.low)
            best = max(best, found)
        return best, Kind.ESTIMATE


@final
@dataclass(frozen=True, eq=False)
class Dominated:
    """M M* <= top ((1 - ratio) w w* + ratio I), proven; `vector` is w, of length 1 up to rounding."""

    top: float
    ratio: float
    vector: Float64[Tensor, " rows"]


def dominated(matrix: Float64[Tensor, "rows cols"]) -> Dominated:
    """The two leading singular values of a matrix and its left vector, as a proven inequality."""
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    vector = left[:, 0]
    first = float(values[0]) ** 2
    second = float(values[1]) ** 2 if len(values) > 1 else 0.0
    if first == 0:
        return Dominated(0.0, 1.0, vector)
    size, count = float(norm_up(matrix, 2)), len(matrix)
    gram = matrix @ matrix.mT
    slack = product_error(matrix.shape[1] + 4, torch.float64) * size**2 + 16 * gamma(8) * first
    margin = 8 * slack + 8 * count * gamma(count) * first
    for _ in range(40):
        top, rest = first + 2 * margin, second + margin
        form = (top - rest) * vector[:, None] * vector + rest * torch.eye(count, dtype=torch.float64) - gram
        if is_positive(form, slack):
            return Dominated(top, min(rest / top * (1 + 4e-16), 1.0), vector)
        margin = 4 * margin
    raise NotProvenError("The leading singular values of a layer could not be proven; use LipSDP.")


def _alignment(pair: Pair, v: Tensor, u: Tensor) -> float:
    """max over d of <v, D u>^2, rounded up, and at most 1."""
    w = u * v
    ends = pair.low * w, pair.high * w
    high, low = torch.maximum(*ends).sum(), torch.minimum(*ends).sum()
    largest = float(torch.maximum(high, -low)) + gamma(len(w) + 8) * float(w.abs().sum())
    return min(largest**2 * _UP, 1.0)
