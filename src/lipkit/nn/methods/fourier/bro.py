"""Orthogonal convolutions by block reflectors in Fourier space."""

import math
from dataclasses import dataclass
from typing import final

import torch

from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.safe_scaling import divide_by_largest
from lipkit.nn.methods._base import Blocks, Free
from lipkit.nn.methods._isometry import close_isometry
from lipkit.nn.methods.fourier._base import FourierMethod, Symbols
from lipkit.rounding.slacks import UNIT

# What is added to V*V, where all ||V|| are at most 1: directions in which V is smaller than the root of this, 4e-6, are
# not reflected. It is more than what rounding in float64 takes away, so that there is always a factor.
_LEAST = 2.0**-36


@final
@dataclass(frozen=True)
class BRO(FourierMethod):
    """Block reflector: at each frequency of the torus, with V the symbol of the free kernel, (channels, rank),

        Q = I - 2 V (V*V)^-1 V*,

    which turns the space of the columns of V around and leaves its complement alone. With unequal numbers of inputs and
    outputs it is made for the larger, and cut.

    (V*V + e I)^-1 stands for the inverse, e = 2^-36 with V scaled to norm at most 1: V may be singular or zero, where
    nothing is turned around. The columns of V are made orthonormal by a Cholesky factor in float64, U = V L^-*, and a
    Björck step that proves ||U|| <= 1. Then U U* has its eigenvalues in [0, 1], and Q = I - 2 U U* in [-1, 1].

    Guarantee: norm at most 1 as stored, on images of `in_size` with circular padding; an isometry but for V with
    singular values between 1e-8 and 1e-3 of the norm of its kernel. Reached: at each frequency a reflector of the same
    rank, so compositions with other layers do the rest. Cost: one complex Cholesky factor for each frequency, in
    complex128; the layer multiplies in Fourier space.
    Gradient: of the factor.
    Reference: Hu, Leino, Wang and Fredrikson 2024; the regularisation and the proof are ours.

    Args:
        in_size: The size of the images, one number for each axis.
        rank: Columns of V; None for half of the channels.
    """

    scale_free = True

    in_size: Shape
    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank is not None and self.rank < 1:
            raise ArgumentError(f"BRO.rank must be at least 1, got {self.rank}; leave it out for half of the channels.")

    def __str__(self) -> str:
        rank = "half rank" if self.rank is None else f"rank {self.rank}"
        return f"BRO on {'x'.join(map(str, self.in_size))}, {rank}"

    def free_shape(self, geometry: Geometry) -> Shape:
        side = max(geometry.rows, geometry.cols)
        rank = max(1, side // 2) if self.rank is None else self.rank
        if rank > side:
            raise ArgumentError(
                f"BRO.rank must be at most the number of channels of a group, {side}, got {rank}; leave it out for "
                "half of them."
            )
        return (side, rank, *geometry.taps)

    def isometries(self, symbols: Symbols, geometry: Geometry) -> Symbols:
        gram = torch.bmm(symbols.mH, symbols)
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        # Without the check of a factorisation that fails, for which a GPU would be waited for.
        factor = torch.linalg.cholesky_ex(gram + _LEAST * identity).L
        basis = torch.linalg.solve_triangular(factor.mH, symbols, upper=True, left=False)
        basis = close_isometry(basis, basis.dtype, may_fall_short=True)
        rows, cols = geometry.rows, geometry.cols
        whole = torch.eye(symbols.shape[-2], dtype=gram.dtype, device=gram.device)[:rows, :cols]
        # The product rounds by 4 (rank + 4) u abs(U) abs(U)*, of norm at most rank ||U||^2.
        rank = basis.shape[-1]
        room = 1 - 16 * rank * (rank + 4) * UNIT
        return (whole - 2 * torch.bmm(basis[:, :rows], basis[:, :cols].mH)) * room

    def level(self, raw: Free) -> Free:
        wide = divide_by_largest(raw.flatten(2).to(torch.float64))
        # ||V|| <= sum_t ||raw_t||_F <= (taps sum raw^2)^(1/2). Squares, because a norm has no derivative at zero.
        square = wide.square().sum((-2, -1), keepdim=True).clamp(min=1.0) * math.prod(raw.shape[3:])
        return (wide * square.rsqrt()).reshape(raw.shape)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        """A reflector at one tap: V has the directions in which the mean of the weight and its transpose is least."""
        groups, rows, cols = geometry.shape[:3]
        side, rank, *taps = self.free_shape(geometry)
        square = weight.new_zeros(groups, side, side)
        square[:, :rows, :cols] = weight[(..., *(0 for _ in taps))]
        _, vectors = torch.linalg.eigh(square + square.mT)
        free = weight.new_zeros(groups, side, rank, *taps)
        free[(..., *((k - 1) // 2 for k in taps))] = vectors[..., :rank]
        return self.at_free_size(free)
