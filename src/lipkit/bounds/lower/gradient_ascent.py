"""Lower bounds by climbing: from many starts toward the steepest place."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Bound, Metric
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.lower.difference_quotients import (
    Pair,
    along,
    best_pair,
    draw_points,
    lower_bound,
    move_inside,
    prover,
    quotients,
)
from lipkit.bounds.lower.sampling import dual_vector, push_forward, regions_of, scale_of, steepest
from lipkit.errors import ArgumentError
from lipkit.regions import Ball, Region
from lipkit.trace import Network

Pairs = tuple[Float64[Tensor, "pairs ..."], Float64[Tensor, "pairs ..."]]


@final
@dataclass(frozen=True, eq=False)
class Climb:
    """One search: the network, where, in which norms, how many steps, and the source of randomness."""

    network: Network
    region: Region
    metric: Metric
    steps: int
    generator: torch.Generator

    def lengths(self, x: Float64[Tensor, "batch ..."]) -> list[float]:
        """Step lengths that shrink from a third of the region by a factor of ten thousand."""
        scale = scale_of(self.region, x)
        return [scale * 0.3 * 1e-4 ** (i / max(1, self.steps - 1)) for i in range(self.steps)]

    def noise(self, x: Float64[Tensor, "batch ..."]) -> Float64[Tensor, "batch ..."]:
        """Random directions of unit length."""
        return unit(torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=self.generator))


class Objective(ABC):
    """The quantity that an ascent makes larger."""

    @abstractmethod
    def climbed(self, climb: Climb, x: Float64[Tensor, "batch ..."]) -> Pairs:
        """Pairs of points with large difference quotients, from the starts x."""


@final
@dataclass(frozen=True)
class JacobianNorm(Objective):
    """The norm of the Jacobian, |J(x) v| with v its steepest direction.

    Where the network is smooth (GELU, SiLU, tanh, ...) the gradient in x comes from differentiating J(x) v once more;
    where that vanishes, as in ReLU networks, whose Jacobian is constant on pieces, steps are random and kept if better.
    """

    def climbed(self, climb: Climb, x: Float64[Tensor, "batch ..."]) -> Pairs:
        norms, directions = steepest(climb.network, x, climb.metric)
        best, best_norms, best_directions = x, norms, directions
        for length in climb.lengths(x):
            covector = dual_vector(push_forward(climb.network, best, best_directions)[0], climb.metric.p_out)
            uphill = _gradient(lambda at, u=covector, v=best_directions: _along_fixed(climb, at, u, v), best)
            slope = torch.linalg.vector_norm(uphill.flatten(1), dim=1)
            flat = ~(torch.isfinite(slope) & (slope > 1e-12 * best_norms))
            step = torch.where(_tail(flat, x), climb.noise(x), unit(torch.nan_to_num(uphill)))
            tried = move_inside(climb.region, best + length * step)
            norms, directions = steepest(climb.network, tried, climb.metric)
            better = norms > best_norms
            best = torch.where(_tail(better, x), tried, best)
            best_directions = torch.where(_tail(better, x), directions, best_directions)
            best_norms = torch.where(better, norms, best_norms)
        top = best_norms.argsort(descending=True)[:4]
        return along(best[top], best_directions[top], scale_of(climb.region, best[top]))

    def __str__(self) -> str:
        return "the Jacobian norm"


@final
@dataclass(frozen=True)
class DifferenceQuotient(Objective):
    """|f(x) - f(y)|_q / |x - y|_p for pairs of points, by normalised gradient steps in both, put back into the region.

    With `anchored` x stays at the center of the ball and only y moves: the empirical estimator of Yang et al. 2020.
    """

    anchored: bool = False

    def climbed(self, climb: Climb, x: Float64[Tensor, "batch ..."]) -> Pairs:
        scale = scale_of(climb.region, x)
        if self.anchored:
            if not isinstance(climb.region, Ball):
                raise ArgumentError(f"An anchored quotient needs a ball, whose center it keeps, got {climb.region}.")
            x = climb.region.center.detach().to(x).expand(x.shape).clone()
        y = move_inside(climb.region, x + scale * (1.0 if self.anchored else 0.3) * climb.noise(x))
        best_x, best_y = x, y
        with torch.no_grad():
            best = quotients(climb.network, x, y, climb.metric)
        for length in climb.lengths(x):
            joint = torch.stack([x, y])
            uphill = _gradient(lambda at: quotients(climb.network, at[0], at[1], climb.metric), joint)
            if not self.anchored:
                x = move_inside(climb.region, x + length * unit(torch.nan_to_num(uphill[0])))
            y = move_inside(
                climb.region, _apart(x, y + length * unit(torch.nan_to_num(uphill[1])), scale * 1e-3, climb)
            )
            with torch.no_grad():
                found = quotients(climb.network, x, y, climb.metric)
            better = found > best
            best_x, best_y = torch.where(_tail(better, x), x, best_x), torch.where(_tail(better, x), y, best_y)
            best = torch.where(better, found, best)
        return best_x, best_y

    def __str__(self) -> str:
        return "the difference quotient" + (" at the center" if self.anchored else "")


@final
@dataclass(frozen=True)
class GradientAscent(RegionMethod):
    """A lower bound of the constant by climbing `on` from `starts` random points for `steps` steps.

        Lip(f) >= |f(x) - f(y)|_q / |x - y|_p - rounding   at the best pair of points, which is the bound's `state`.

    Guarantee: LOWER, as for `Sampling`; ESTIMATE where float64 cannot prove half of it. On the whole space the starts
    are at scales from 0.01 to 100. A region with a batch of centers gives a value for each.
    Cost: `steps` times a few backward passes of `starts` points. Seeded, so the same each time.
    """

    steps: int = 50
    starts: int = 16
    on: Objective = field(default_factory=JacobianNorm)
    metric: Metric = L2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 0 or self.starts < 1:
            raise ArgumentError(f"GradientAscent needs steps >= 0 and starts >= 1, got {self.steps} and {self.starts}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        samples, of = regions_of(region, network)
        prove = prover(network, self.metric)
        frozen = network.detach()
        pairs: list[Pair] = []
        for one in samples:
            generator = torch.Generator(network.device).manual_seed(self.seed)
            x = draw_points(one, network.source, self.starts, generator)
            first, second = self.on.climbed(Climb(frozen, one, self.metric, self.steps, generator), x)
            pairs.append(best_pair(frozen, one, first, second, prove, self.metric))
        return lower_bound(pairs, region, self.metric, self, of)

    def __str__(self) -> str:
        return f"ascent on {self.on}, {self.starts} starts"


def unit(x: Float64[Tensor, "batch ..."]) -> Float64[Tensor, "batch ..."]:
    """Every entry of the batch divided by its Euclidean norm."""
    return x / _tail(torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=1e-300), x)


def _gradient(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        found = value(point).sum()
        if not found.requires_grad:
            return torch.zeros_like(at)
        return torch.autograd.grad(found, point, materialize_grads=True)[0]


def _along_fixed(climb: Climb, x: Tensor, covector: Tensor, direction: Tensor) -> Tensor:
    """<u, J(x) v> with u and v fixed: at the maximising u its derivative is that of |J(x) v|."""
    value = climb.network(x)
    if not value.requires_grad:
        return x.new_zeros(len(x))
    back = torch.autograd.grad(value, x, covector, create_graph=True, materialize_grads=True)[0]
    return (back * direction).flatten(1).sum(1)


def _apart(x: Tensor, y: Tensor, least: float, climb: Climb) -> Tensor:
    """y, pushed away from x where it came too near for the quotient to mean anything."""
    distance = torch.linalg.vector_norm((y - x).flatten(1), dim=1)
    away = torch.where(_tail(distance > 0, x), unit(y - x), climb.noise(x))
    return torch.where(_tail(distance < least, x), x + least * away, y)


def _tail(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 1))
