"""Convolutions as matrix trigonometric polynomials: the one place where geometry turns into Fourier analysis."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache, singledispatch
from typing import final

import torch
from jaxtyping import Float64, Inexact, Int64
from torch import Tensor
from torch.nn import functional

from lipkit.errors import UnsupportedError
from lipkit.linops._base import Adjoint, Compose, LinearOperator, Scaled, Shape
from lipkit.linops.batch_norm import BatchNorm
from lipkit.linops.circular_conv import CircularConv
from lipkit.linops.composites import factors
from lipkit.linops.conv import Conv
from lipkit.linops.conv_transpose import ConvTranspose
from lipkit.linops.elementary import Diagonal, Permute, Reshape
from lipkit.linops.padding import Padding, copies
from lipkit.linops.pool import AvgPool
from lipkit.rounding.slacks import UNIT


@final
@dataclass(frozen=True, eq=False)
class Symbol:
    """The symbol E(w) = sum_a kernel[..., a] e^(-i a.w) of a convolution, one matrix per group, and what it bounds.

    Stride has become more columns (the phases of the input), dilation has been divided out, padding has become the
    `torus` (one size per axis) and the `gain`. For the operator A behind it,
        ||A|| <= gain max_{w on the torus grid} ||E(w)|| <= gain sup_w ||E(w)||,
    the first an equality where `exact`. `section` is the number of positions, the larger of inputs' and outputs', where
    A is a finite section of the convolution on the whole lattice (zero padding), None where it wraps around. The kernel
    has shape (*batch, groups, rows, cols, *taps): a batch of kernels of one geometry is evaluated at once.
    """

    kernel: Inexact[Tensor, "..."]
    torus: Shape
    gain: float
    exact: bool
    section: int | None

    @property
    def taps(self) -> Shape:
        """Number of coefficients per axis; the polynomial has degree (taps - 1)/2 about its centre."""
        return tuple(self.kernel.shape[self.kernel.ndim - len(self.torus) :])

    def frequencies(self, grid: Shape) -> Int64[Tensor, "count axes"]:
        """The points of a grid, as integers f with w = 2 pi f / grid; for a real kernel, one of each pair f, -f.

        E(-w) is then the complex conjugate of E(w), with the same singular values.
        """
        return _points(grid, self.kernel.is_complex())

    def at(self, points: Int64[Tensor, "count axes"], grid: Shape) -> Inexact[Tensor, "*batch count groups rows cols"]:
        """E at w = 2 pi points / grid, in complex128; differentiable in the kernel. Cost: one product with the taps.

        The sum is taken directly: taps are few, a kernel longer than the grid folds by itself, and the rounding error
        has a simple proof (`error`), which a fast Fourier transform of unknown make has not.
        """
        device = self.kernel.device
        places, at = _points(self.taps, True).to(device), points.to(device)
        turns = torch.zeros((), dtype=torch.float64, device=device)
        for axis, n in enumerate(grid):
            # Integer arithmetic first: the angle keeps full accuracy however many turns it makes.
            turns = turns + (at[:, axis, None] * places[:, axis] % n).to(torch.float64) / n
        angle = (2 * math.pi) * turns
        flat = self.kernel.flatten(-len(grid)).movedim(-1, -4)
        shape = flat.shape[-3:]
        flat = flat.flatten(-3)
        if flat.is_complex():
            return (torch.polar(torch.ones_like(angle), -angle) @ flat).unflatten(-1, shape)
        return torch.complex(angle.cos() @ flat, -angle.sin() @ flat).unflatten(-1, shape)

    def error(self) -> Float64[Tensor, "*batch"]:
        """A bound of ||fl E(w) - E(w)|| for every w and group.

        Angles are within 2 pi (axes + 2) roundings, sine and cosine within two more, a factor on the kernel (a batch
        norm's takes four and a product) within eight: 64 in all; the sum over taps adds its own; both act on
        sum_a |kernel_a|, whose Frobenius norm bounds its norm.
        """
        count = math.prod(self.taps)
        size = self.kernel.detach().flatten(-len(self.torus)).abs().sum(-1)
        size = torch.linalg.vector_norm(size, dim=(-2, -1)).amax(-1)
        return size * ((3 * (count + 4) + 64) * UNIT * 1.001)


@lru_cache(maxsize=64)
def _points(grid: Shape, every: bool) -> Tensor:
    points = torch.cartesian_prod(*[torch.arange(n) for n in grid]).reshape(-1, len(grid))
    if every:
        return points
    sizes = torch.tensor(grid)
    place = torch.tensor([math.prod(grid[i + 1 :]) for i in range(len(grid))])
    return points[(points * place).sum(1) <= ((-points % sizes) * place).sum(1)]


@singledispatch
def symbol(op: LinearOperator) -> Symbol:
    """The symbol of a convolution-like operator; UnsupportedError for anything else."""
    raise _unsupported(op)


@symbol.register(Conv)
def _conv(op: Conv) -> Symbol:
    return _symbol(op.weight, op.groups, op.spatial, op.stride, op.padding, op.dilation, op.out_shape[1:], op.mode)


@symbol.register(ConvTranspose)
def _conv_transpose(op: ConvTranspose) -> Symbol:
    # The adjoint of a convolution from the output grid to the input grid, with the same kernel.
    sides = tuple((p, 0) for p in op.padding)
    grid = op.out_shape[1:]
    return _symbol(op.weight, op.groups, grid, op.stride, sides, op.dilation, op.spatial, Padding.ZEROS)


@symbol.register(CircularConv)
def _circular_conv(op: CircularConv) -> Symbol:
    return symbol(op.conv)


@symbol.register(AvgPool)
def _avg_pool(op: AvgPool) -> Symbol:
    return symbol(op.conv)


@symbol.register(Adjoint)
def _adjoint(op: Adjoint) -> Symbol:
    return symbol(op.inner)


@symbol.register(Scaled)
def _scaled(op: Scaled) -> Symbol:
    inner = symbol(op.inner)
    return replace(inner, kernel=op.factor.to(inner.kernel.device) * inner.kernel)


@symbol.register(Compose)
def _compose(op: Compose) -> Symbol:
    # Rearranging entries before or after changes no singular value.
    core = factors(op)
    while core and isinstance(core[0], Reshape | Permute):
        core = core[1:]
    while core and isinstance(core[-1], Reshape | Permute):
        core = core[:-1]
    scale = _channel_scale(core[0]) if len(core) == 2 and isinstance(core[1], Conv) else None
    if scale is not None:
        found = symbol(core[1])
        kernel = found.kernel
        return replace(found, kernel=kernel * scale.reshape(*kernel.shape[:2], *(1,) * (kernel.ndim - 2)))
    if len(core) == 1:
        return symbol(core[0])
    raise _unsupported(op)


def _channel_scale(op: LinearOperator) -> Tensor | None:
    """One factor for each channel, if the operator is just that; a product with it scales the rows of the symbol."""
    if isinstance(op, BatchNorm):
        return op.diagonal.scale.flatten()
    if isinstance(op, Diagonal) and tuple(op.scale.shape) == (op.shape[0], *(1,) * (len(op.shape) - 1)):
        return op.scale.flatten()
    return None


def _unsupported(op: LinearOperator) -> UnsupportedError:
    return UnsupportedError(
        f"{op} is not a convolution, so it has no symbol; use SVD, Cholesky or Gram if it is small, Lanczos otherwise."
    )


@final
@dataclass(frozen=True)
class _Axis:
    """One axis: kernel positions sorted into phases, and the torus they live on."""

    slots: tuple[tuple[int, ...], ...]
    torus: int
    section: int
    copies: int
    exact: bool


def _axis(n: int, k: int, stride: int, dilation: int, sides: tuple[int, int], out: int, mode: Padding) -> _Axis:
    left, repeated, exact = sides[0], 1, False
    if mode is Padding.CIRCULAR:
        # Windows start at multiples of gcd(stride, n) on the circle and visit each start equally often, up to one.
        step = math.gcd(stride, n)
        starts = n // step
        repeated, exact, torus = math.ceil(out / starts), out % starts == 0, n
    else:
        step = stride
        if mode is not Padding.ZEROS:
            # Copying entries at most `repeated` times has norm sqrt(repeated); what follows needs no padding.
            repeated, n, left = copies(n, sides, mode), n + sum(sides), 0
        last = (out - 1) * stride + (k - 1) * dilation - left
        # Large enough that a window reaching over the border finds zeros, not the other end, and no two outputs meet.
        torus = step * math.ceil(max(n + left, last + 1, out * stride) / step)
        inside = any(left <= o * stride and o * stride - left + (k - 1) * dilation < n for o in range(out))
        exact = inside and repeated == 1
    # Tap a sits at a * dilation = step * q + phase. Within a phase q runs in steps of `stretch`; shifting a phase
    # multiplies its columns by a phase factor and stretching substitutes the frequency: neither moves the supremum.
    common = math.gcd(step, dilation)
    stretch = dilation // common
    phases: dict[int, list[int]] = {}
    for a in range(k):
        phases.setdefault(a * dilation % step, []).append(a)
    length = max(map(len, phases.values()))
    slots = tuple(tuple(members + [k] * (length - len(members))) for members in phases.values())
    positions = torus // step
    if mode is not Padding.CIRCULAR and length > 1:
        exact = False
    return _Axis(slots, positions // math.gcd(stretch, positions), max(out, math.ceil(n / step)), repeated, exact)


def _symbol(
    weight: Tensor, groups: int, spatial: Shape, stride: Shape, sides: tuple[tuple[int, int], ...],
    dilation: Shape, out: Shape, mode: Padding,
) -> Symbol:  # fmt: skip
    kernel = weight.unflatten(0, (groups, weight.shape[0] // groups))
    axes: list[_Axis] = []
    for i, n in enumerate(spatial):
        axis = _axis(n, weight.shape[2 + i], stride[i], dilation[i], sides[i], out[i], mode)
        axes.append(axis)
        if axis.slots == (tuple(range(weight.shape[2 + i])),):
            kernel = kernel.movedim(3, -1)
            continue
        # The taps of this axis are the first trailing ones; its phases join the columns, its taps go last.
        taps = functional.pad(kernel.movedim(3, -1), (0, 1))
        index = torch.tensor(axis.slots, device=weight.device)
        taps = taps.index_select(-1, index.flatten()).unflatten(-1, index.shape)
        kernel = taps.movedim(-2, 3).flatten(2, 3)
    return Symbol(
        kernel,
        tuple(axis.torus for axis in axes),
        math.sqrt(math.prod(axis.copies for axis in axes)) * (1 + 16 * UNIT),
        all(axis.exact for axis in axes),
        math.prod(axis.section for axis in axes) if mode is not Padding.CIRCULAR else None,
    )
