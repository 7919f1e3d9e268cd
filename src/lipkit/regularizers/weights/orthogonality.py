"""Penalties on weights that are not orthogonal: from their Gram matrix, or from products with random vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Dense, LinearOperator, symbol
from lipkit.norms.convolutions.toeplitz import filter_gram
from lipkit.regularizers.linear_layers import LinearLayer, sum_over_layers


@final
@dataclass(frozen=True)
class Orthogonality:
    """sum over layers of ||W'W - I||_F^2, or ||K*K - delta||_F^2 for convolutions, on the smaller side.

    Of a convolution, K*K is the correlation of the kernel with itself at all shifts that are multiples of the stride,
    delta the identity at shift zero: this is L_orth, ||conv(K, K, padding=floor((k-1)/s) s, stride=s) - I||_F^2, less
    m - s^2 c where the m outputs exceed the s^2 c inputs. The larger side gives the same number plus the difference of
    the sides, so nothing is lost by the choice; half the sum is the Parseval tightness.

    Guarantee: 0 if and only if every layer is orthogonal (rows or columns orthonormal), convolutions under circular
    padding on images of at least twice the kernel; any other value promises nothing about the norm. Inputs that a
    stride longer than the kernel skips are left out, where L_orth may count a constant for them.
    Cost: one (filter) Gram a layer, whatever the image size. Evaluated in float32 at least.
    References: Cisse et al. 2017; Wang et al. 2020; Achour et al. 2022 for strides and the constant.
    """

    def __call__(self, layers: Sequence[LinearLayer]) -> Float[Tensor, ""]:
        """The penalty at the current weights."""
        return sum_over_layers(self, layers, residual)


def residual(op: LinearOperator) -> Float[Tensor, ""]:
    """||K*K - delta||_F^2 of one matrix or convolution, on the smaller side, summed over groups.

    Cost: one (filter) Gram. Limits: UnsupportedError for operators that are neither.
    """
    kernel = op.weight[None, :, :, None] if isinstance(op, Dense) else symbol(op).kernel
    # Autocast would take the products in half precision.
    with torch.autocast(kernel.device.type, enabled=False):
        gram = filter_gram(kernel.to(torch.promote_types(kernel.dtype, torch.float32)))
    centre = (..., *(taps // 2 for taps in gram.shape[3:]))
    delta = torch.zeros_like(gram[0])
    delta[centre] = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    difference = gram - delta
    return (difference.abs() if difference.is_complex() else difference).square().sum()


@final
@dataclass(frozen=True, eq=False)
class StochasticParseval:
    """sum over layers of the mean over `draws` of 1/2 ||x - A'(A x)||^2, x ~ N(0, I), on the smaller side.

    Its expectation is 1/2 ||I - A'A||_F^2 exactly, of the operator itself with its padding and stride; where the input
    is the larger side, A A' takes the place of A'A, which changes the expectation by a constant only.

    Guarantee: none; unbiased, with a relative deviation of about (2/draws)^(1/2) at worst. Cost: `draws` applications
    of A and A'. Random: `generator` makes it reproducible. Evaluated in float32 at least.
    Reference: Béthune 2024, equation 2.23.

    Args:
        draws: Number of random vectors.
        generator: Source of the vectors; torch's global one if None.
    """

    draws: int = 1
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ArgumentError(f"StochasticParseval.draws must be at least 1, got {self.draws}.")

    def __call__(self, layers: Sequence[LinearLayer]) -> Float[Tensor, ""]:
        """One estimate of the penalty at the current weights."""
        return sum_over_layers(self, layers, self.tightness)

    def tightness(self, op: LinearOperator) -> Float[Tensor, ""]:
        """The estimate for one operator. Cost: `draws` applications of it and of its adjoint."""
        weight = op.tensors()[0]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        side = (op if op.in_size <= op.out_size else op.T).to(dtype)
        device = weight.device if self.generator is None else self.generator.device
        x = torch.randn((self.draws, *side.in_shape), dtype=dtype, device=device, generator=self.generator)
        x = x.to(weight.device)
        with torch.autocast(weight.device.type, enabled=False):
            return (x - side.adjoint(side.apply(x))).square().flatten(1).sum(1).mean() / 2
