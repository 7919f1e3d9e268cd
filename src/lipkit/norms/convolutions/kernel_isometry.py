"""Convolutions close to a multiple of an isometry, from the kernel alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from lipkit.bound import Bound, Kind
from lipkit.linops import LinearOperator
from lipkit.norms._base import Norm, refuse_state
from lipkit.norms.convolutions.symbol_grid import symbols
from lipkit.norms.convolutions.toeplitz import filter_gram, gram_error, wiener
from lipkit.norms.gram import Gram
from lipkit.rounding.float64 import gamma, log_up, normalize
from lipkit.rounding.slacks import UNIT


@final
@dataclass(frozen=True)
class KernelIsometry(Norm):
    """sup_w ||E(w)||^2 <= s + ||K*K - s delta||: `NearIsometry` for filter Grams, whatever the image size.

    K*K is the full correlation of the kernel with itself, delta the centred identity, s the mean of its diagonal; the
    residual R is bounded by the smaller of its Wiener norm max_i sum_{j, a} |R_ija| and the sum over taps of ||R_a||.

    Guarantee: UPPER for every padding, stride and size; sharp for orthogonal kernels, loose for others.
    Cost: one filter Gram. Gradient: of the returned value.
    """

    inner: Gram = field(default_factory=lambda: Gram(steps=2))

    def __str__(self) -> str:
        return "near-isometry residual of the kernel"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        scaled, exponent = normalize(kernels, self)
        flat = scaled.flatten(0, 1)
        mean, residual = _residual(flat)
        taps = residual.flatten(3).movedim(3, 1).contiguous()
        size = torch.minimum(wiener(residual), self._tap_norms(taps))
        error = gram_error(flat) * (1 + gamma(8)) + 4 * UNIT * mean.detach()
        square = (mean + (size + error) * (1 + gamma(8))) * (1 + gamma(8))
        value = square.unflatten(0, kernels.shape[:2]).amax(1)
        positive = torch.where(value > 0, value, 1.0).sqrt() * (1 + gamma(4))
        gain = math.log(first.gain * (1 + gamma(4)))
        log_upper = torch.where(value > 0, log_up(positive, exponent) + gain, -math.inf)
        return [Bound(one, Kind.UPPER, self) for one in log_upper]

    def _tap_norms(self, taps: Tensor) -> Tensor:
        count = taps.shape[1]
        flat = taps.flatten(0, 1)
        with torch.no_grad():
            found = self.inner.enclose(flat.detach().unsqueeze(1))
        log_norms = self.inner.attach_gradient(flat, found) if flat.requires_grad else found.log_upper
        return log_norms.exp().unflatten(0, (-1, count)).sum(1) * (1 + gamma(count + 8))


def _residual(kernel: Tensor) -> tuple[Tensor, Tensor]:
    gram = filter_gram(kernel)
    centre = (..., *(t // 2 for t in gram.shape[3:]))
    n = gram.shape[1]
    diagonal = torch.diagonal(gram[centre], dim1=-2, dim2=-1)
    mean = (diagonal.real if gram.is_complex() else diagonal).mean(-1)
    delta = torch.zeros_like(gram[0])
    delta[centre] = torch.eye(n, dtype=gram.dtype, device=gram.device)
    return mean, gram - mean.reshape(-1, *(1,) * delta.ndim) * delta
