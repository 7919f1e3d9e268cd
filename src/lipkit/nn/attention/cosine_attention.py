"""Attention by angles: queries, keys and values are shortened first, which gives it a constant."""

import math
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from lipkit.nn.attention.l2_attention import SelfAttention, hidden_keys
from lipkit.nn.core.bounded_length import as_logarithm, bound_length, positive_number
from lipkit.nn.core.known_constants import SAFE, require_real
from lipkit.nn.core.precision import uncast
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck

# The largest scale is exp of this.
_STEEPEST = 20.0


class CosineMixing(nn.Module):
    """(Q, K, V) -> softmax(scale Q^ K^') V^ / c, where ^ makes rows shorter than a learnt length e, 1 in scores.

    For e = 1 and rows of at most 1, with c1 the largest column sum of P, t the scale, and variances of at most 1, the
    derivatives in V, Q and K are at most sqrt(c1), t and t sqrt(c1) (see `lipkit.trace.nodes.attention.attention`), so
        c = sqrt(c1 + t^2 + t^2 c1),   c1 <= sum over queries of 1 / (1 + (keys - 1) exp(-2 t)),
    because scores lie in [-t, t]. For another e the map is e F(./e), which has the same constant.
    """

    def __init__(self, num_heads: int, scale: float, length: float, device: torch.device | None = None) -> None:
        super().__init__()
        start = as_logarithm(scale, "scale")
        self.log_scale = nn.Parameter(torch.full((num_heads,), start, device=device))
        self.log_length = nn.Parameter(torch.full((num_heads,), as_logarithm(length, "length"), device=device))

    def forward(
        self,
        q: Float[Tensor, "... heads queries width"],
        k: Float[Tensor, "... heads keys width"],
        v: Float[Tensor, "... heads keys size"],
        tokens: int | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "... heads queries size"]:
        """The mixture; divided by the constant for `tokens` queries and keys where this is given."""
        length = positive_number(self.log_length, q).reshape(-1, 1, 1)
        scale = self.log_scale.clamp(-_STEEPEST, _STEEPEST).exp()
        q, k, v = (bound_length(part, length) for part in (q, k, v))
        scores = (q / length) @ (k / length).mT * scale.to(q.dtype).reshape(-1, 1, 1)
        if is_causal:
            scores = scores.masked_fill(hidden_keys(q), -math.inf)
        queries, keys = (q.shape[-2], k.shape[-2]) if tokens is None else (tokens, tokens)
        factor = SAFE / cosine_attention_constant(scale, queries, keys, is_causal)
        return scores.softmax(-1) @ v * factor.to(v.dtype).reshape(-1, 1, 1)


def cosine_attention_constant(
    scale: Float[Tensor, " heads"], queries: int, keys: int, is_causal: bool = False
) -> Float64[Tensor, " heads"]:
    """c of `CosineMixing` for each head; it grows with the scale and with the number of tokens. Guarantee: UPPER.

    Up to rounding in float64, which is far below the slack of the factor it divides.
    """
    wide = scale.to(torch.float64)
    if is_causal:
        # Row i has i keys.
        seen = torch.arange(queries, device=scale.device, dtype=torch.float64)
        column = (1 / (1 + seen * (-2 * wide).exp().unsqueeze(-1))).sum(-1)
    else:
        column = queries / (1 + (keys - 1) * (-2 * wide).exp())
    return (column + wide.square() * (1 + column)).sqrt()


@final
class CosineAttention(SelfAttention):
    """Scaled cosine self-attention: x -> W_out (P_h v_h / c)_h with P = softmax(t q k'), (q, k, v) = W_in x.

    Rows of q, k and v are divided by sqrt(1 + |.|^2 / e^2), with a learnt length e for each head: published as a
    division by the norm, which has no constant near zero; with sqrt(|.|^2 + eps) the constant is 1/sqrt(eps), and
    e = sqrt(eps) times that is 1. c depends on the learnt scale t and the number of tokens (`CosineMixing`).

    Guarantee: constant 1 in l2 on the whole space, in training and in evaluation, for sequences up to `tokens`; with
    None each is divided by the constant for its own length. For n tokens c is at most sqrt(n (1 + t^2) + t^2), where
    the sum of the published parts is of order n t. Cost: two products, and tokens^2 embed_dim for the attention.
    Reference: Qi et al. 2023 (LipsFormer); the constant is ours.

    Args:
        embed_dim: Entries of a token, on the last axis.
        num_heads: Number of heads; divides embed_dim.
        bias: Whether the projections have biases.
        tokens: Length of the longest sequence; None divides each sequence by the constant of its own length.
        is_causal: Whether token i sees only the tokens up to i.
        scale: t at the start; 1 if None.
        length: e at the start, the length of tokens from which on they are shortened.
        method: Computes both weights from free numbers.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        tokens: int | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        length: float = 1.0,
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(embed_dim, num_heads, tokens, is_causal)
        require_real(self, dtype)
        self.in_proj = Linear(embed_dim, 3 * embed_dim, bias=bias, device=device, dtype=dtype, method=method)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype, method=method)
        self.mixing = CosineMixing(num_heads, 1.0 if scale is None else scale, length, device).to(dtype)
        _ = self.gain

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The mixed tokens."""
        self.length_of(tuple(x.shape))
        z = self.in_proj(x)
        with uncast(x.device.type):
            q, k, v = self.split_heads(z, 3).unbind(-4)
            joined = self.join_heads(self.mixing(q, k, v, self.tokens, self.is_causal), z)
        return self.out_proj(joined)
