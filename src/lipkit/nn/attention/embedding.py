"""Tokens as vectors, with a constant in the number of tokens that differ."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.nn.core.known_constants import Stated
from lipkit.rounding.slacks import ROUNDINGS_8


@final
class Embedding(Stated):
    """nn.Embedding whose vectors have length at most `max_norm`: |E(s) - E(t)| <= 2 max_norm sqrt(d(s, t)).

    d is the number of places in which two texts of one length differ, and the norm is l2 over all places. Tokens have
    no other distance: numbers of tokens are names. A model of constant K behind it moves by at most 2 max_norm K for
    one substitution, by sqrt(k) times that for k. Insertions and deletions move all tokens behind them, and count as so
    many substitutions; for them see `lipkit.certify.text`.
    The same for mixtures: if p and q are probabilities of tokens, E' p and E' q differ by at most max_norm |p - q|_1,
    since E' (p - q) is |p - q|_1 / 2 times a difference of means. In l2, from one-hot vectors to the whole space, the
    constant would be the norm of E, which grows with the number of tokens.

    Guarantee: `gain` = 2 max_norm, 1 by default, for the distance sqrt(d), in training and in evaluation.
    Cost: a pass over the vectors that are used. Rows that are too long are shortened where they are used; the parameter
    stays as it is, unlike that of nn.Embedding with max_norm.

    Args:
        num_embeddings: Number of tokens.
        embedding_dim: Entries of a vector.
        padding_idx: Token whose vector gets no gradient, and starts at zero.
        max_norm: Largest length of a vector.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float = 0.5,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_embeddings < 1 or embedding_dim < 1:
            raise ArgumentError(f"Embedding needs tokens and entries, got {num_embeddings} and {embedding_dim}.")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(
                f"Embedding.padding_idx must be one of its {num_embeddings} tokens, got {padding_idx}; leave it out "
                "for none."
            )
        if not 0 < max_norm < float("inf"):
            raise ArgumentError(f"Embedding.max_norm must be a positive number, got {max_norm}.")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm = max_norm
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors anew, as the constructor does: of length about max_norm, in random directions."""
        with torch.no_grad():
            self.weight.normal_(0, self.max_norm * self.embedding_dim**-0.5)
            if self.padding_idx is not None:
                self.weight[self.padding_idx].zero_()

    @property
    def gain(self) -> float:
        """2 max_norm: the most that one substitution moves the output."""
        return 2 * self.max_norm * (1 + ROUNDINGS_8)

    def forward(self, tokens: Int[Tensor, "..."]) -> Float[Tensor, "... size"]:
        """The vectors."""
        return self._cut(functional.embedding(tokens, self.weight, self.padding_idx))

    def to_plain(self, dtype: torch.dtype | None = None) -> nn.Module:
        """nn.Embedding with the shortened vectors."""
        with torch.no_grad():
            weight = self._cut(self.weight if dtype is None else self.weight.to(dtype))
        return nn.Embedding.from_pretrained(
            weight.clone(), freeze=not self.weight.requires_grad, padding_idx=self.padding_idx
        )

    def _cut(self, rows: Tensor) -> Tensor:
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        # The largest entry first: squares do not overflow.
        size = wide.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
        length = torch.linalg.vector_norm(wide / size, dim=-1, keepdim=True) * size
        # Norms of `embedding_dim` numbers, the quotient and the products are off by less.
        unit = torch.finfo(wide.dtype).eps * (self.embedding_dim + 8) + 2 * torch.finfo(rows.dtype).eps
        # Entries below the smallest normal number are off by half of their spacing, whatever their own size.
        info = torch.finfo(rows.dtype)
        spacing = info.smallest_normal * info.eps / 2 * self.embedding_dim**0.5
        limit = max(0.0, self.max_norm * (1 - unit) - spacing)
        return (wide * (limit / length.clamp(min=self.max_norm))).to(rows.dtype)
