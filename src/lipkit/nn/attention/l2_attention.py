"""Self-attention by distances, with a constant on the whole space."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lipkit._compilers import constant_for_compilers
from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops import Shape
from lipkit.nn.attention.l2_constants import distance_attention_constant
from lipkit.nn.core.bounded_length import as_logarithm, positive_number, wide
from lipkit.nn.core.gain import gain_of
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.nn.core.linear_norm import linear_norm
from lipkit.nn.core.precision import uncast
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.rounding.slacks import ROUNDINGS_32

# Squared distances are cut off here. Times the smallest scale this is 2e18, so a token that far away has the weight
# exp(-2e18), and whatever its derivatives are, they are below every rounding; infinity would make gradients NaN.
_FAR = 2.0**90


class SelfAttention(Stated):
    """Self-attention between two linear layers: sizes, heads, and the longest sequence."""

    in_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(self, embed_dim: int, num_heads: int, tokens: int | None, is_causal: bool) -> None:
        super().__init__()
        name = type(self).__name__
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(
                f"{name} splits embed_dim evenly among its heads, got embed_dim={embed_dim} and num_heads={num_heads}; "
                "take a number of heads that divides it."
            )
        if tokens is not None and tokens < 1:
            raise ArgumentError(f"{name}.tokens is the length of the longest sequence, at least 1, got {tokens}.")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.tokens = tokens
        self.is_causal = is_causal

    @property
    def gain(self) -> float:
        """The product of the norms of the two linear layers: 1, in few digits the most that rounding makes of it."""
        return gain_of(self.in_proj) * gain_of(self.out_proj) * (1 + ROUNDINGS_32)

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The same for the weights as they are, on one sequence of `in_shape` = (tokens, embed_dim).

        After `condense`, where weights are plain, their norms are proven.
        """
        self.length_of(tuple(in_shape))
        return linear_norm(self.out_proj).compose(linear_norm(self.in_proj))

    def length_of(self, shape: tuple[int, ...]) -> int:
        """The number of tokens of an input, the last axis but one; refuses what the constant does not hold for."""
        name = type(self).__name__
        if len(shape) < 2 or shape[-1] != self.embed_dim or not shape[-2]:
            raise ShapeError(
                f"{name} takes sequences (batch, tokens, {self.embed_dim}) of at least one token, got an input of "
                f"shape {tuple(shape)}."
            )
        if self.tokens is not None and shape[-2] > self.tokens:
            raise ShapeError(
                f"{name} has its constant for at most {self.tokens} tokens, got an input of shape {tuple(shape)}; "
                "build it with more tokens, or with tokens=None."
            )
        return shape[-2]

    def split_heads(self, x: Float[Tensor, "... tokens size"], parts: int) -> Float[Tensor, "..."]:
        """(..., tokens, parts heads width) as (..., parts, heads, tokens, width), in float32 at least."""
        return wide(x).unflatten(-1, (parts, self.num_heads, -1)).movedim(-4, -2)

    def join_heads(self, heads: Float[Tensor, "... heads tokens width"], like: Tensor) -> Float[Tensor, "..."]:
        """The heads side by side, in the type of `like`."""
        return heads.transpose(-2, -3).flatten(-2).to(like.dtype)


@final
class L2Attention(SelfAttention):
    """Multi-head self-attention whose scores are distances: x -> W_out (P_h z_h / c)_h, z = W_in x.

    z is cut into heads z_h of width embed_dim / num_heads, and P_ij ~ exp(-s |z_i - z_j|^2) in each, with a learnt
    scale s > 0. The constant c of Z -> P Z depends on the number of tokens alone, not on s
    (`distance_attention_constant`); heads act on disjoint parts, and ||W_in||, ||W_out|| <= 1 by `method`. The layer of
    Kim et al., P z A W_V W_O with z = x W_Q, has values that are linear in z too: its further factors are part of W_out
    here, and sizes part of s.

    Guarantee: constant 1 in l2 on the whole space, in training and in evaluation. With `tokens`, for sequences up to
    that length, all divided by the same number; with None, each divided by the number for its own length. c is 2.3,
    6.5, 9.7 and 19.3 for 2, 8, 16 and 64 tokens; searches for large Jacobians found 1.6 and 2.6 for 2 and 8.
    Cost: two products, and tokens^2 embed_dim for the attention. Dot-product attention has no constant.
    Reference: Kim, Papamakarios, Mnih 2021; the constant and the form are ours.

    Args:
        embed_dim: Entries of a token, on the last axis.
        num_heads: Number of heads; divides embed_dim.
        bias: Whether the output has a bias.
        tokens: Length of the longest sequence; None divides each sequence by the constant of its own length.
        is_causal: Whether token i sees only the tokens up to i.
        scale: s at the start, the factor of squared distances; 1 / sqrt(embed_dim / num_heads) if None.
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
        method: WeightMethod = Bjorck(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__(embed_dim, num_heads, tokens, is_causal)
        # A shift of all tokens changes no distance, and the output only as a bias there would.
        self.in_proj = Linear(embed_dim, embed_dim, bias=False, device=device, dtype=dtype, method=method)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype, method=method)
        start = as_logarithm((embed_dim / num_heads) ** -0.5 if scale is None else scale, "L2Attention.scale")
        self.log_scale = nn.Parameter(torch.full((num_heads,), start, device=device, dtype=dtype))
        _ = self.gain

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The mixed tokens."""
        tokens = self.length_of(tuple(x.shape))
        z = self.in_proj(x)
        with uncast(x.device.type):
            (heads,) = self.split_heads(z, 1).unbind(-4)
            mixed = distance_attention(heads, positive_number(self.log_scale, heads), self.is_causal)
            # A compiled program of a model without `tokens` is for one length.
            factor = _factor(int(tokens) if self.tokens is None else self.tokens, self.is_causal)
            joined = self.join_heads(mixed * factor, z)
        return self.out_proj(joined)


@constant_for_compilers
def _factor(tokens: int, is_causal: bool) -> float:
    return SAFE / distance_attention_constant(tokens, is_causal)


def distance_attention(
    z: Float[Tensor, "... heads tokens width"], scale: Float[Tensor, " heads"], is_causal: bool = False
) -> Float[Tensor, "... heads tokens width"]:
    """P z with P_ij ~ exp(-scale |z_i - z_j|^2); its constant is `distance_attention_constant(tokens, is_causal)`."""
    # Distances do not see the mean. Between tokens that are near each other and far from it, products of float32 leave
    # no digits of a distance: they are taken in float64, where the device has it.
    precise = torch.float64 if z.device.type in ("cpu", "cuda") else z.dtype
    mean = z.to(precise).mean(-2, keepdim=True)
    y = z.to(precise) - mean
    # Whatever this number is, the result is the same, and squares do not overflow.
    size = y.detach().abs().amax((-2, -1), keepdim=True).clamp(min=1.0)
    near = y / size
    squares = near.square().sum(-1)
    gaps = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * near @ near.mT
    # Rounding may leave a distance of a token to itself, which counts where all others are far.
    others = 1 - torch.eye(z.shape[-2], device=z.device, dtype=precise)
    gaps = (gaps.clamp(min=0.0) * others * size * size).clamp(max=_FAR).to(z.dtype)
    scores = -gaps * scale.reshape(-1, 1, 1)
    if is_causal:
        scores = scores.masked_fill(hidden_keys(z), -math.inf)
    return mean.to(z.dtype) + scores.softmax(-1) @ y.to(z.dtype)


def hidden_keys(z: Float[Tensor, "... tokens width"]) -> Tensor:
    """The pairs (i, j) with j after i."""
    return torch.ones(z.shape[-2], z.shape[-2], device=z.device, dtype=torch.bool).triu(1)
