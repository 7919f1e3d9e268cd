"""Transformer blocks with residual connections of bounded weight."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn.activations.rescaled import GELU
from lipkit.nn.attention.cosine_attention import CosineAttention
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import Stated
from lipkit.nn.core.linear_norm import linear_norm
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.normalization.batch_norm import CenterNorm
from lipkit.rounding.slacks import ROUNDINGS_32


@final
class LipsFormerBlock(Stated):
    """y = x + a attention(norm(x)), then y + b W_2 GELU(W_1 norm(y)), with learnt a, b for each channel, |.| <= alpha.

    norm is `CenterNorm`, attention `CosineAttention`, GELU is divided by its largest slope, and the linear layers have
    norm at most 1 by `method`. Each branch has constant 1, so each sum has 1 + alpha.

    Guarantee: constant (1 + alpha)^2 in l2 on the whole space, whatever a and b are. It is not divided by it: put the
    block into `Sequential`. With alpha = 1/depth a stack of `depth` blocks has less than e^2. The published constant is
    1 + max a for each sum, for a >= 0, with branches that are taken to have constant 1.
    Cost: six products of tokens by embed_dim^2 with the default width, and the attention.
    Reference: Qi et al. 2023 (LipsFormer); the bounded weights are ours.

    Args:
        embed_dim: Entries of a token, on the last axis.
        num_heads: Number of heads; divides embed_dim.
        dim_feedforward: Width of the hidden layer; 4 embed_dim if None.
        alpha: Largest weight of a branch; at the start all are half of it.
        tokens: Length of the longest sequence, as of `CosineAttention`.
        is_causal: Whether token i sees only the tokens up to i.
        method: Computes all weights from free numbers.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dim_feedforward: int | None = None,
        alpha: float = 0.2,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        tokens: int | None = None,
        is_causal: bool = False,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        if not 0 < alpha < float("inf"):
            raise ArgumentError(f"LipsFormerBlock.alpha must be a positive number, got {alpha}.")
        hidden = 4 * embed_dim if dim_feedforward is None else dim_feedforward
        self.alpha = alpha
        self.attention = CosineAttention(
            embed_dim, num_heads, device=device, dtype=dtype, tokens=tokens, is_causal=is_causal, method=method
        )
        self.norm1 = CenterNorm(embed_dim, device, dtype)
        self.norm2 = CenterNorm(embed_dim, device, dtype)
        self.linear1 = Linear(embed_dim, hidden, device=device, dtype=dtype, method=method)
        self.activation = GELU()
        self.linear2 = Linear(hidden, embed_dim, device=device, dtype=dtype, method=method)
        self.weight1 = nn.Parameter(torch.full((embed_dim,), alpha / 2, device=device, dtype=dtype))
        self.weight2 = nn.Parameter(torch.full((embed_dim,), alpha / 2, device=device, dtype=dtype))
        _ = self.gain

    @property
    def gain(self) -> float:
        """(1 + alpha g)(1 + alpha g') with the constants g, g' of the branches, which are 1 in float32 and float64."""
        second = gain_of(self.linear1) * gain_of(self.activation) * gain_of(self.linear2)
        return (1 + self.alpha * self.attention.gain) * (1 + self.alpha * second) * (1 + ROUNDINGS_32)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The same for the weights as they are, on one sequence of `in_shape` = (tokens, embed_dim)."""
        first = self.attention.declared_lipschitz(in_shape)
        second = linear_norm(self.linear2).compose(linear_norm(self.linear1)).scale(gain_of(self.activation))
        one = Bound.from_value(1.0, Kind.EXACT, "the identity")
        return one.sum(second.scale(self.alpha)).compose(one.sum(first.scale(self.alpha)))

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The block."""
        y = x + self._weighted(self.attention(self.norm1(x)), self.weight1)
        hidden = self.activation(self.linear1(self.norm2(y)))
        return y + self._weighted(self.linear2(hidden), self.weight2)

    def _weighted(self, branch: Tensor, weight: Tensor) -> Tensor:
        # The limit is rounded down with the number of digits it is multiplied with.
        limit = self.alpha * (1 - 2 * torch.finfo(branch.dtype).eps)
        return branch * weight.to(branch.dtype).clamp(-limit, limit)
