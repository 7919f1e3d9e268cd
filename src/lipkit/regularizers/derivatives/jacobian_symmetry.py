"""How far a vector field is from being a gradient: the antisymmetric part of its Jacobian."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.regularizers.derivatives.input_points import evaluate_flat, pull_back, safe_root, track_input
from lipkit.regularizers.derivatives.jacobian_norm import Hutchinson


class SymmetryPenalty(ABC):
    """A penalty on J - J' of a field T: R^n -> R^n at given points; zero at all points of a simply connected region
    if and only if T is a gradient field there. Nothing is said about convexity.
    """

    @final
    def __call__(self, field: Callable[[Tensor], Tensor], x: Shaped[Tensor, "batch ..."]) -> Float[Tensor, ""]:
        """The mean over the samples of `x`."""
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            x = track_input(x)
            y = evaluate_flat(field, x)
            if y.shape[1] != x[0].numel():
                raise ShapeError(
                    f"A Jacobian is symmetric only if it is square, got {x[0].numel()} inputs and {y.shape[1]} outputs."
                )
            found = self.each(y, x, graph)
        return found.mean() if graph else found.detach().mean()

    @abstractmethod
    def each(self, y: Float[Tensor, "batch n"], x: Tensor, graph: bool) -> Float[Tensor, " batch"]:
        """The penalty of each sample."""


@final
@dataclass(frozen=True)
class JacobianSymmetry(SymmetryPenalty):
    """mean over samples of ||J - J'||_F, or of its square with `squared=True`, from the whole Jacobian.

    Guarantee: zero if and only if J is symmetric at the points. Cost: n backward passes, and memory for n^2 numbers a
    sample. Reference: Uscidda and Cuturi 2023; Béthune 2024, equation 7.6.

    Args:
        squared: Whether the squared norm is penalised, or the norm.
    """

    squared: bool = False

    def each(self, y: Float[Tensor, "batch n"], x: Tensor, graph: bool) -> Float[Tensor, " batch"]:
        rows = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)
        jacobian = torch.stack([pull_back(y, x, row.expand_as(y), graph) for row in rows], 1)
        squares = (jacobian - jacobian.mT).square().sum((1, 2))
        return squares if self.squared else safe_root(squares)


@final
@dataclass(frozen=True)
class StochasticSymmetry(SymmetryPenalty):
    """mean over samples of ||J v - J'v||^2 with v ~ N(0, I): its expectation is ||J - J'||_F^2.

    Guarantee: unbiased for the square (the norm itself would be biased). Cost: two backward passes a draw, one of them
    through the other; J v is the derivative of u -> J'u in the direction v, so second derivatives are needed.
    The estimator is ours; probes after Hutchinson 1990.

    Args:
        probes: Number and source of the random vectors.
    """

    probes: Hutchinson = field(default_factory=Hutchinson)

    def each(self, y: Float[Tensor, "batch n"], x: Tensor, graph: bool) -> Float[Tensor, " batch"]:
        found: list[Tensor] = []
        for _ in range(self.probes.draws):
            v = self.probes.vectors(y)
            u = torch.zeros_like(y, requires_grad=True)
            # J'u is linear in u, so its value at 0 is 0 and its derivative along v is J v, whatever u is.
            pulled = pull_back(y, x, u, graph=True)
            (pushed,) = torch.autograd.grad(
                pulled, u, v.to(pulled.dtype), create_graph=graph, retain_graph=True, materialize_grads=True
            )
            found.append((pushed.to(pulled.dtype) - pull_back(y, x, v, graph)).square().sum(1))
        return torch.stack(found).mean(0)
