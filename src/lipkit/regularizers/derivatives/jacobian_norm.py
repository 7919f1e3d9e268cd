"""The Frobenius norm of the Jacobian at the data: the Jacobian penalty and the Dirichlet energy."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lipkit._seeds import normal
from lipkit.errors import ArgumentError
from lipkit.regularizers.derivatives.input_points import evaluate_flat, pull_back, safe_root, track_input


class JacobianEstimator(ABC):
    """A way to find ||J||_F^2 of each sample from products v'J."""

    @abstractmethod
    def squares(self, y: Float[Tensor, "batch outputs"], x: Tensor, graph: bool) -> Float[Tensor, " batch"]:
        """||dy/dx||_F^2 for each sample; `graph` keeps it differentiable."""


@final
@dataclass(frozen=True)
class ExactJacobian(JacobianEstimator):
    """sum_i ||e_i'J||^2: one backward pass for each output."""

    def squares(self, y: Float[Tensor, "batch outputs"], x: Tensor, graph: bool) -> Float[Tensor, " batch"]:
        rows = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)
        found = [pull_back(y, x, row.expand_as(y), graph).square().sum(1) for row in rows]
        return torch.stack(found).sum(0)


@final
@dataclass(frozen=True, eq=False)
class Hutchinson(JacobianEstimator):
    """E ||v'J||^2 with v ~ N(0, I), `draws` times: unbiased, one backward pass a draw.

    The relative deviation of one draw is at most 2^(1/2), that of the mean over a batch smaller by its root.
    References: Hutchinson 1990; Hoffman, Roberts, Yaida 2019 for Jacobians.

    Args:
        draws: Number of random vectors; the variance falls with it.
        generator: Source of the vectors; torch's global one if None.
    """

    draws: int = 1
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ArgumentError(f"Hutchinson.draws must be at least 1, got {self.draws}.")

    def squares(self, y: Float[Tensor, "batch outputs"], x: Tensor, graph: bool) -> Float[Tensor, " batch"]:
        found = [pull_back(y, x, self.vectors(y), graph).square().sum(1) for _ in range(self.draws)]
        return torch.stack(found).mean(0)

    def vectors(self, like: Tensor) -> Tensor:
        """Standard normal numbers, drawn where the generator lives."""
        return normal(like, self.generator, torch.float32).to(like)


@final
@dataclass(frozen=True)
class JacobianPenalty:
    """mean over samples of ||J_f(x)||_F^2, which bounds the squared spectral norm of each Jacobian from above.

    Guarantee: none about other points than `x`. Cost: a forward pass, one backward pass for each output
    (`ExactJacobian`) or draw (`Hutchinson`), and when training one through all of these. Samples must not influence
    each other.
    Reference: Hoffman, Roberts, Yaida 2019 (weight 1/2 lambda).

    Args:
        estimator: Finds ||J||_F^2: `Hutchinson()` by draws, `ExactJacobian()` by one pass for each output.
    """

    estimator: JacobianEstimator = field(default_factory=Hutchinson)

    def __call__(self, model: Callable[[Tensor], Tensor], x: Shaped[Tensor, "batch ..."]) -> Float[Tensor, ""]:
        """The mean over the samples of `x`."""
        return self.each(model, x).mean()

    def each(self, model: Callable[[Tensor], Tensor], x: Shaped[Tensor, "batch ..."]) -> Float[Tensor, " batch"]:
        """||J_f(x)||_F^2 for each sample."""
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            x = track_input(x)
            squares = self.estimator.squares(evaluate_flat(model, x), x, graph)
        return squares if graph else squares.detach()


@final
@dataclass(frozen=True)
class DirichletEnergy:
    """mean over samples of ||J_f(x)||_F^power, power 1 or 2: how much a function varies over the data.

    Guarantee: a proxy of complexity, no bound of anything; any upper bound of the Lipschitz constant is above
    (mean ||J||_F^2 / min(inputs, outputs))^(1/2). Cost: as `JacobianPenalty`. With power 1, `Hutchinson` is biased low
    (a root of an unbiased number), so `ExactJacobian` is the default.
    References: Dherin et al. 2022 (power 2); Béthune 2024, remark 2.2 (power 1, scalar functions).

    Args:
        power: Exponent of ||J||_F, 1 or 2.
        estimator: Finds ||J||_F^2.
    """

    power: int = 2
    estimator: JacobianEstimator = field(default_factory=ExactJacobian)

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise ArgumentError(f"DirichletEnergy.power must be 1 or 2, got {self.power}.")

    def __call__(self, model: Callable[[Tensor], Tensor], x: Shaped[Tensor, "batch ..."]) -> Float[Tensor, ""]:
        """The mean over the samples of `x`."""
        squares = JacobianPenalty(self.estimator).each(model, x)
        return squares.mean() if self.power == 2 else safe_root(squares).mean()
