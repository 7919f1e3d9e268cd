"""Kernels as products: a matrix, and convolutions with two taps that are made of one projector each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.linops import Shape
from lipkit.nn.core.precision import room_for
from lipkit.nn.methods._arithmetic.precise_products import gram_of
from lipkit.nn.methods._isometry import last_step, room_of_step
from lipkit.rounding.slacks import UNIT

# A batch of matrices with norm at most one, made of free ones; or free ones, of matrices.
Orthogonalize = Callable[[Float[Tensor, "batch rows cols"]], Float[Tensor, "batch rows cols"]]
Numbers = Float[Tensor, "groups lines inner"]


@final
@dataclass(frozen=True)
class ProjectorChain:
    """The kernel K(z) = H(z) F_1(z_a) F_2(z_b) ..., F(z) = I - P + P z, with z_a = exp(i w_a) on the axis of F.

    H has `window` taps on each axis, which never meet the same entry of the input: as a matrix (rows, window inner) it
    has the norm of its convolution. P = R'R is a symmetric matrix with R of shape (inner // 2, inner), or I - R'R for
    every second factor on an axis: their ranks add up to `inner`, so pairs of factors move channels by one tap on the
    average, and R equal in all of them gives the identity at the central tap.

    Norm: if ||R|| <= 1, the eigenvalues l of P are in [0, 1], and F has the eigenvalues 1 - l + l z with
        |1 - l + l z| <= 1 - l + l = 1   for |z| = 1,
    so every factor is a contraction whatever R is. If R R' = I, every l is 0 or 1 and F is unitary at every frequency.
    So ||K|| <= ||H||, and all singular values of K are those of H if the R have orthonormal rows. Leaving out columns
    of K keeps K*K = I; a transposed kernel, K_t' at each tap, has the same singular values.

    Free numbers are lines of `inner` entries: rows prod(window) for H, then inner // 2 for each R.

    Args:
        rows: Rows of H.
        inner: Channels that the factors act on.
        cols: Columns of the kernel; the others are left out.
        window: Taps of H on each axis.
        axes: The axis of each factor.
        transposed: Whether each tap is transposed at the end.
    """

    rows: int
    inner: int
    cols: int
    window: Shape
    axes: Shape
    transposed: bool = False

    @property
    def rank(self) -> int:
        """The rows of each R."""
        return self.inner // 2

    @property
    def head(self) -> int:
        """The number of free lines of H."""
        return self.rows * math.prod(self.window)

    @property
    def lines(self) -> int:
        """The number of free lines of one group."""
        return self.head + len(self.axes) * self.rank

    @property
    def taps(self) -> Shape:
        """The taps of the kernel on each axis."""
        return tuple(w + self.axes.count(axis) for axis, w in enumerate(self.window))

    def is_second(self, position: int) -> bool:
        """Whether a factor has I - R'R for P: every second one on its axis."""
        return self.axes[:position].count(self.axes[position]) % 2 == 1

    def rank_of(self, position: int) -> int:
        """The rank of P in a factor, if R has full rank."""
        return self.inner - self.rank if self.is_second(position) else self.rank

    def parts(self, raw: Numbers) -> tuple[Float[Tensor, "groups rows entries"], Float[Tensor, "factors rank inner"]]:
        """H and all R, one after the other for each group, from their lines."""
        head, rest = raw.split([self.head, self.lines - self.head], 1)
        factors = rest.reshape(len(raw) * len(self.axes), self.rank, self.inner)
        return head.reshape(-1, self.rows, self.head // self.rows * self.inner), factors

    def join(self, head: Float[Tensor, "groups rows entries"], factors: Float[Tensor, "factors rank inner"]) -> Numbers:
        """The lines of H and all R: the inverse of `parts`."""
        lines = factors.reshape(len(head), self.lines - self.head, self.inner)
        return torch.cat([head.reshape(len(head), self.head, self.inner), lines], 1)

    def changed(self, raw: Numbers, by: Orthogonalize) -> Numbers:
        """The lines with H and all R replaced by what a function makes of them, in two calls."""
        head, factors = self.parts(raw)
        return self.join(by(head), by(factors) if factors.numel() else factors)

    def kernel(self, raw: Numbers, orthogonalize: Orthogonalize) -> Float[Tensor, "groups rows cols *taps"]:
        """The kernel, with norm at most one as stored in the type of `raw`.

        `orthogonalize` is called twice. A step in float64 then squares away what it left: 3/2 H - 1/2 H H'H, and
        R'(3 G - 2 G^2) R with G = R R', which takes l to 3 l^2 - 2 l^3, in [0, 1] again.
        """
        head, factors = self.parts(raw)
        wide = _closed(orthogonalize(head))
        found = wide.reshape(-1, self.rows, *self.window, self.inner)
        if self.axes:
            projectors = self._projectors(orthogonalize(factors)) if self.rank else self._shifts(wide)
            for position, axis in enumerate(self.axes):
                found = times_factor(found, projectors[:, position], axis)
        found = found[..., : self.cols].movedim(-1, 1 if self.transposed else 2)
        rows, cols = found.shape[1:3]
        room = room_for(rows, cols, math.prod(self.taps), raw.dtype) * self._room()
        return (found * room).to(raw.dtype)

    def _projectors(self, factors: Float[Tensor, "factors rank inner"]) -> Float64[Tensor, "groups count inner inner"]:
        wide = factors.to(torch.float64)
        gram = gram_of(factors.mT, torch.float64)
        cleaned = torch.baddbmm(gram, gram, gram, beta=3.0, alpha=-2.0)
        found = torch.bmm(wide.mT, torch.bmm(cleaned, wide)).unflatten(0, (-1, len(self.axes)))
        signs, shifts = self._complements(wide)
        return found * signs + shifts

    def _shifts(self, like: Float64[Tensor, "groups rows entries"]) -> Float64[Tensor, "groups count 1 1"]:
        """With one channel a factor is 1 or z."""
        return self._complements(like)[1].expand(len(like), -1, -1, -1)

    def _complements(self, like: Tensor) -> tuple[Float64[Tensor, "count 1 1"], Float64[Tensor, "count inner inner"]]:
        """Signs and additions that make I - P of every second P on its axis."""
        second = [float(self.is_second(position)) for position in range(len(self.axes))]
        odd = torch.tensor(second, dtype=torch.float64, device=like.device)[:, None, None]
        return 1 - 2 * odd, odd * torch.eye(self.inner, dtype=torch.float64, device=like.device)

    def _room(self) -> float:
        """The factor that makes room for rounding in float64: of P, of n products with P, of the sums of taps.

        With c = `inner`, r = c // 2 and u = 2^-53, to first order: G, G^2 and the two products with R change P by at
        most (7 c r + 5 r^2) u, which counts twice in F. In each step K P is off by c u |K| |P| in each entry, so
        by (t c)^(1/2) c u ||K||_F <= t^(1/2) c^2 u in norm, t the number of taps (as in `shrink`), and that counts
        twice too; two sums add 4 (t c)^(1/2) u. In all below 16 t^(1/2) c (c + 2) u.
        """
        size = math.sqrt(math.prod(self.taps)) * self.inner * (self.inner + 2)
        return 1 - 16 * len(self.axes) * size * UNIT


def times_factor(
    kernel: Float64[Tensor, "groups rows *taps inner"], projector: Float64[Tensor, "groups inner inner"], axis: int
) -> Float64[Tensor, "groups rows *more inner"]:
    """K(z) (I - P + P z) on one axis, which gets a tap more: K_t - (K P)_t + (K P)_(t - 1)."""
    moved = torch.bmm(kernel.flatten(1, -2), projector).reshape(kernel.shape)
    stay, along = kernel - moved, 2 + axis
    many = kernel.shape[along] - 1
    if many == 0:
        return torch.cat([stay, moved], along)
    # Parts put together start fewer operations than padded sums, also backward.
    first, rest = stay.split([1, many], along)
    before, last = moved.split([many, 1], along)
    return torch.cat([first, rest + before, last], along)


def _closed(head: Float[Tensor, "groups rows entries"]) -> Float64[Tensor, "groups rows entries"]:
    """A Björck step in float64 from a matrix of norm at most one: what is left of rounding in float32 is squared."""
    if head.shape[1] < head.shape[2]:
        return _closed(head.mT).mT
    gram = gram_of(head, torch.float64)
    return last_step(head.to(torch.float64), gram, torch.float64, room_of_step(head, torch.float64))
