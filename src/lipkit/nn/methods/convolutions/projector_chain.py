"""Kernels as products: a matrix, and convolutions with two taps that are made of one projector each."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Shape
from lipkit.nn.core.precision import room_for
from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._base import MatrixMethod
from lipkit.rounding.slacks import UNIT

# A batch of matrices with norm at most one, made of free ones; or free ones, of matrices.
Orthogonalize = Callable[[Float[Tensor, "batch rows cols"]], Float[Tensor, "batch rows cols"]]
Numbers = Float[Tensor, "groups lines inner"]
# H, all R, the chain, and the type of the kernel.
Inputs = tuple[Tensor, Tensor, "ProjectorChain", torch.dtype]


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

    def kernel(self, raw: Numbers, inner: MatrixMethod) -> Float[Tensor, "groups rows cols *taps"]:
        """The kernel of H and R that `inner` makes orthogonal, with norm at most one as stored in the type of `raw`."""
        head, factors = self.parts(raw)
        if not factors.numel():
            return _multiplied(*inner.in_float64(head), factors.to(torch.float64), self, raw.dtype)
        return _multiplied(*inner.in_float64(head, factors), self, raw.dtype)

    def room(self, dtype: torch.dtype) -> float:
        """The factor that makes room for rounding: in float64 of P, of n products with it and of sums; to `dtype`.

        With c = `inner`, r = c // 2, t taps, p of them in H, and u = 2^-53, to first order: R'R is off by r u |R|'|R|,
        in norm by r^2 u, which counts twice in F. All kernels have ||K||_F <= ||H||_F <= (p c)^(1/2). In each step K P
        is off by c u |K| |P| in each entry, so in norm by t^(1/2) c u ||K||_F ||P||_F <= (p t)^(1/2) c^2 u (as in
        `shrink`), and that counts twice too; two sums add 4 (p t c)^(1/2) u. In all below 4 (p t)^(1/2) c (c + 2) u;
        twice that is taken.
        """
        rows, cols = (self.cols, self.rows) if self.transposed else (self.rows, self.cols)
        taps = math.prod(self.taps)
        size = math.sqrt(math.prod(self.window) * taps) * self.inner * (self.inner + 2)
        lost = 8 * len(self.axes) * size * UNIT
        return room_for(rows, cols, taps, dtype) * (1 - lost)


def times_factor(
    kernel: Float[Tensor, "groups rows *taps inner"],
    projector: Float[Tensor, "groups inner inner"],
    axis: int,
    second: bool = False,
) -> Float[Tensor, "groups rows *more inner"]:
    """K(z) (I - P + P z) on one axis, which gets a tap more; P + (I - P) z in place of the factor where `second`."""
    moved = torch.bmm(kernel.flatten(1, -2), projector).reshape(kernel.shape)
    return _overlapped(kernel - moved, moved, axis, second)


def _overlapped(
    still: Float[Tensor, "groups rows *taps inner"],
    moved: Float[Tensor, "groups rows *taps inner"],
    axis: int,
    second: bool,
) -> Float[Tensor, "groups rows *more inner"]:
    """S + M z on one axis: S_t + M_(t - 1); where `second`, M + S z."""
    still, moved = (moved, still) if second else (still, moved)
    along = 2 + axis
    many = still.shape[along] - 1
    if many == 0:
        return torch.cat([still, moved], along)
    # Parts put together start fewer operations than padded sums.
    middle = still.narrow(along, 1, many) + moved.narrow(along, 0, many)
    return torch.cat([still.narrow(along, 0, 1), middle, moved.narrow(along, many, 1)], along)


def _forward(head: Tensor, factors: Tensor, chain: ProjectorChain, dtype: torch.dtype) -> Tensors:
    """The kernel, all P, and the products with fewer factors, which derivatives need in `dtype` only."""
    found = chain.room(dtype) * head.reshape(-1, chain.rows, *chain.window, chain.inner)
    projectors = torch.bmm(factors.mT, factors)
    each = _each(chain, projectors)
    before: list[Tensor] = []
    for position, axis in enumerate(chain.axes):
        before.append(found.to(dtype))
        found = times_factor(found, each[position], axis, chain.is_second(position))
    return _outside(found, chain, dtype), projectors.to(dtype), *before


def _backward(inputs: Inputs, outputs: Tensors, gradients: Gradients) -> Gradients:
    head, factors, chain, dtype = inputs
    _, projectors, *before = outputs
    out, by_projectors, *by_before = gradients
    each = _each(chain, projectors)
    out = _inside(torch.zeros_like(outputs[0]) if out is None else out, chain)
    found: list[Tensor] = []
    for position in reversed(range(len(chain.axes))):
        kernel = before[position]
        along = 2 + chain.axes[position]
        still, moved = (out.narrow(along, shift, kernel.shape[along]) for shift in (0, 1))
        still, moved = (moved, still) if chain.is_second(position) else (still, moved)
        # What K P receives: K - K P stays, K P moves.
        product = (moved - still).flatten(1, -2)
        found.append(torch.bmm(kernel.flatten(1, -2).mT, product))
        out = still + torch.bmm(product, each[position].mT).reshape(kernel.shape)
        more = by_before[position]
        out = out if more is None else out + more
    by_head = (out * chain.room(dtype)).reshape(head.shape).to(head.dtype)
    inner = torch.stack(found[::-1], 1).flatten(0, 1) if found else torch.zeros_like(projectors)
    inner = inner if by_projectors is None else inner + by_projectors
    return by_head, torch.bmm(factors.to(dtype), inner + inner.mT).to(factors.dtype)


def _jvp(inputs: Inputs, outputs: Tensors, tangents: Tensors) -> Gradients:
    _, factors, chain, dtype = inputs
    _, projectors, *before = outputs
    half = torch.bmm(factors.to(dtype).mT, tangents[1].to(dtype))
    turned = half + half.mT
    each, by_each = _each(chain, projectors), _each(chain, turned)
    change = chain.room(dtype) * tangents[0].to(dtype).reshape(-1, chain.rows, *chain.window, chain.inner)
    found: list[Tensor] = []
    for position, axis in enumerate(chain.axes):
        found.append(change)
        kernel = before[position].flatten(1, -2)
        moved = torch.baddbmm(torch.bmm(kernel, by_each[position]), change.flatten(1, -2), each[position])
        moved = moved.reshape(change.shape)
        change = _overlapped(change - moved, moved, axis, chain.is_second(position))
    return _outside(change, chain, dtype), turned, *found


_multiplied = with_derivative(_forward, _backward, _jvp, tensors=2)


def _each(chain: ProjectorChain, projectors: Float[Tensor, "factors inner inner"]) -> list[Tensor]:
    """For every factor its P in all groups."""
    count = max(len(chain.axes), 1)
    return list(projectors.unflatten(0, (-1, count)).unbind(1)) if chain.axes else []


def _outside(
    kernel: Float[Tensor, "groups rows *taps inner"], chain: ProjectorChain, dtype: torch.dtype
) -> Float[Tensor, "groups outputs inputs *taps"]:
    """The columns that are used, the taps behind."""
    found = kernel[..., : chain.cols].movedim(-1, 1 if chain.transposed else 2)
    return found.to(dtype, memory_format=torch.contiguous_format, copy=True)


def _inside(
    weight: Float[Tensor, "groups outputs inputs *taps"], chain: ProjectorChain
) -> Float[Tensor, "groups rows *taps inner"]:
    """The adjoint of `_outside`."""
    found = weight.movedim(1 if chain.transposed else 2, -1).contiguous()
    return functional.pad(found, (0, chain.inner - chain.cols)) if chain.cols < chain.inner else found
