"""The Jacobian norm of softmax in attention, bounded from the two largest probabilities of each row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError

# Probabilities below this count as this; its logarithm bounds the penalty.
_LEAST = 1e-12


def interlacing_bound(probabilities: Float[Tensor, "*rows keys"], k: int) -> Float[Tensor, "*rows"]:
    """g_k(p) = p_(k) (1 - p_(k) + p_(k+1)), entries sorted downwards, p_(n+1) = 0.

    It lies between the k-th singular value of the softmax Jacobian M = diag(p) - p p' and p_(k):
        p_(1) >= g_1 >= sigma_1 >= p_(2) >= g_2 >= sigma_2 >= ... >= p_(n) >= g_n >= sigma_n >= 0.
    Cost: a selection of the k + 1 largest. Reference: Yudin et al. 2025; the last term for k = n is ours.
    """
    keys = probabilities.shape[-1]
    if not 1 <= k <= keys:
        raise ArgumentError(f"g_k of {keys} probabilities needs 1 <= k <= {keys}, got {k}.")
    top = probabilities.topk(min(k + 1, keys), -1).values
    following = top[..., k] if k < keys else torch.zeros_like(top[..., k - 1])
    return top[..., k - 1] * (1 - top[..., k - 1] + following)


@final
@dataclass(frozen=True)
class JaSMin:
    """sum over layers and heads of max over rows of log g_1(p) (k = 0), or of log(g_1(p)/g_k(p)), mean over the batch.

    p are rows of attention probabilities, g_k as in `interlacing_bound`. With k = 0 the largest ||M||_2 is pushed
    down; with k >= 1 the top of the spectrum is evened out: g_1/g_k <= c implies ||M||_2 <= c/k, since p_(k) <= 1/k.

    `mask` is True where a key may be attended to, as in torch's scaled dot product; rows with fewer than k + 1 such
    keys (the first of a causal mask, padding) say nothing and are skipped, a head without any other row counts 0.

    Guarantee: exp of the k = 0 term bounds the largest ||M||_2 from above (up to the floor of 1e-12).
    Cost: k + 1 largest of each row. Limits: needs the probabilities, so no fused attention. In float32 at least.
    Reference: Yudin et al. 2025; the constant 1 in c/k is ours.

    Args:
        k: 0 for the largest singular value; k >= 1 for its ratio to the k-th.
    """

    k: int = 0

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ArgumentError(f"JaSMin.k must be an integer >= 0, got {self.k}.")

    def __call__(
        self,
        probabilities: Float[Tensor, "batch heads rows keys"] | Sequence[Float[Tensor, "batch heads rows keys"]],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, ""]:
        """The penalty of one attention map, or of the maps of several layers under one mask."""
        maps = [probabilities] if isinstance(probabilities, Tensor) else list(probabilities)
        if not maps:
            raise ArgumentError("JaSMin got no attention probabilities; give one map for each layer.")
        terms = [self.term(p, mask) for p in maps]
        return torch.stack([term.to(terms[0]) for term in terms]).sum()

    def term(
        self, probabilities: Float[Tensor, "batch heads rows keys"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, ""]:
        """One layer's part."""
        p = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
        if self.k >= p.shape[-1]:
            raise ArgumentError(f"JaSMin with k = {self.k} needs more than {self.k} keys, got {p.shape[-1]}.")
        allowed = torch.ones_like(p, dtype=torch.bool)
        if mask is not None:
            try:
                allowed = mask.expand_as(p)
            except RuntimeError as error:
                raise ShapeError(
                    f"The mask of shape {tuple(mask.shape)} does not fit probabilities of shape {tuple(p.shape)}."
                ) from error
        valid = allowed.sum(-1) > self.k
        # Rows that are skipped may hold NaN: a softmax over nothing.
        p = torch.where(allowed & valid[..., None], p, 0.0)
        value = _log(interlacing_bound(p, 1))
        if self.k >= 1:
            value = value - _log(interlacing_bound(p, self.k))
        worst = value.masked_fill(~valid, -math.inf).amax(-1)
        return torch.where(valid.any(-1), worst, 0.0).sum(1).mean()


def _log(g: Tensor) -> Tensor:
    return g.clamp(min=_LEAST).log()
