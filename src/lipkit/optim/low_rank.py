"""Few directions that carry most of a gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Inexact
from torch import Tensor

# Columns of zero may be drawn too, with this probability: there may be fewer others than are asked for.
_LEAST = 2.0**-40


class Directions(ABC):
    """An orthonormal basis Q of `rank` directions such that Q Q'G is near G."""

    @abstractmethod
    def __call__(
        self, gradients: Inexact[Tensor, "batch long short"], rank: int, source: torch.Generator
    ) -> Inexact[Tensor, "batch long rank"]:
        """A basis for each gradient; random numbers come from `source`, on the CPU."""


@final
@dataclass(frozen=True)
class LeadingDirections(Directions):
    """The leading left singular vectors: Q Q'G is the best approximation of its rank. Cost: a decomposition, n p^2."""

    def __call__(
        self, gradients: Inexact[Tensor, "batch long short"], rank: int, source: torch.Generator
    ) -> Inexact[Tensor, "batch long rank"]:
        del source
        return torch.linalg.svd(gradients, full_matrices=False).U[..., :rank]


@final
@dataclass(frozen=True)
class RandomDirections(Directions):
    """The range of G on random vectors. Cost: a product of n p rank, and a QR factorisation.

    Reference: Papadimitriou et al. 2000 ("LSI"); Halko, Martinsson and Tropp 2011.
    """

    def __call__(
        self, gradients: Inexact[Tensor, "batch long short"], rank: int, source: torch.Generator
    ) -> Inexact[Tensor, "batch long rank"]:
        shape = (len(gradients), gradients.shape[-1], rank)
        drawn = torch.randn(shape, dtype=torch.float64, generator=source).to(gradients)
        return torch.linalg.qr(gradients @ drawn).Q


@final
@dataclass(frozen=True)
class SampledColumns(Directions):
    """The span of columns of G, drawn with probabilities that grow with their squared norms. Cost: one pass, and a QR.

    Reference: Drineas, Kannan and Mahoney 2006.
    """

    def __call__(
        self, gradients: Inexact[Tensor, "batch long short"], rank: int, source: torch.Generator
    ) -> Inexact[Tensor, "batch long rank"]:
        squares = torch.linalg.vector_norm(gradients, dim=-2).to("cpu", torch.float64).square()
        total = squares.sum(-1, keepdim=True)
        chances = squares / torch.where(total > 0, total, 1.0) + _LEAST
        drawn = torch.multinomial(chances, rank, generator=source).to(gradients.device)
        return torch.linalg.qr(torch.take_along_dim(gradients, drawn[:, None, :], -1)).Q
