"""How far layers are from orthogonal: the squared distance of their Gram matrices or filter Grams from the identity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

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
