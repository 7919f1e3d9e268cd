"""Upper bounds of the distance to the nearest input of another class, by attacks."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit.bound import Kind
from lipkit.certify.attacks._base import Attack
from lipkit.certify.attacks._power_of_two_units import lengths
from lipkit.certify.attacks.attacked_model import Classifier, Victim, attack_on
from lipkit.certify.attacks.boundary_step import shortest_step
from lipkit.certify.attacks.neighbourhood import Neighbourhood, per_sample
from lipkit.certify.attacks.objectives import Margin
from lipkit.errors import ArgumentError


@final
@dataclass(frozen=True, eq=False)
class Nearest:
    """Broken inputs and their distances; `radius` is inf, and the point the input itself, where none was found.

    The distance to the nearest input of another class is never above `radius` (`kind` is UPPER): the point proves it,
    for the model as it computes in its own dtype, whose label loses there by more than last digits (see `Attack`).
    """

    points: Float[Tensor, "n *shape"]
    radius: Float64[Tensor, " n"]
    kind: Kind = Kind.UPPER


@final
@dataclass(frozen=True)
class MinimalRadius:
    """The smallest radius at which an attack succeeds, for each sample, by bisection in the radius.

    Starts with the attack at its own `eps`. What it finds is drawn back along the segment to the input as far as it
    stays broken (`pulls` halvings). Then, `normals` times, the input is sent as far in the direction of the boundary's
    normal at the point so found, and drawn back again if that breaks it. The distance is the new upper end; a failed
    attempt raises the lower end, which is a guess, not a bound. There are `rounds` further attempts, at the geometric
    mean of the ends, but not below nine tenths of the upper one: what lies nearer is found from there.

    Guarantee: UPPER: `radius` is at least the true distance, with a point to show; it is 0 for inputs that are wrong as
    they are. Cost: rounds + 1 attacks, each with (normals + 1) pulls forward and `normals` backward passes.
    One normal gives the distance to an affine boundary to 2^-pulls.

    Args:
        attack: Attack that is tried at each radius; its `eps` is the first.
        rounds: Further radii that are tried.
        normals: Attempts along the normal of the boundary, for each success.
        pulls: Halvings of the segment to the input.
    """

    attack: Attack
    rounds: int = 6
    normals: int = 2
    pulls: int = 12

    def __post_init__(self) -> None:
        if min(self.rounds, self.normals, self.pulls) < 0:
            raise ArgumentError(f"MinimalRadius needs rounds, normals and pulls >= 0, got {self!r}.")

    def __str__(self) -> str:
        return f"smallest radius of {self.attack}"

    def __call__(
        self,
        model: Classifier | nn.Module,
        x: Float[Tensor, "n *shape"],
        labels: Int[Tensor, " n"],
        *,
        generator: torch.Generator | None = None,
    ) -> Nearest:
        """The nearest broken input found for each sample, with its distance."""
        with torch.inference_mode(False):
            x, labels = x.detach().clone(), labels.clone()
            tried = torch.full((len(x),), self.attack.eps, dtype=torch.float64, device=x.device)
            best = Nearest(x.clone(), torch.full_like(tried, math.inf))
            failed = torch.zeros_like(tried)
            for _ in range(self.rounds + 1):
                rows = (tried > 0).nonzero().squeeze(1)
                if not len(rows):
                    break
                found = self.attack.within(model, x[rows], labels[rows], tried[rows], generator=generator)
                with attack_on(model) as victim:
                    broken = self._keep(victim, x, labels, rows, found, best)
                    for _ in range(self.normals):
                        self._try_along_normal(victim, x, labels, rows[broken], best)
                failed[rows] = torch.where(broken, failed[rows], torch.maximum(failed[rows], tried[rows]))
                tried = _next_radii(best.radius, failed)
            return best

    def _near(self, x: Tensor, radius: Tensor) -> Neighbourhood:
        return Neighbourhood(x, radius, self.attack.p, self.attack.low, self.attack.high)

    def _keep(self, victim: Victim, x: Tensor, labels: Tensor, rows: Tensor, points: Tensor, best: Nearest) -> Tensor:
        """Write broken points, drawn back, into `best` where they are nearer; returns which points are broken."""
        broken = victim.margin(points, labels[rows]) < 0
        some = rows[broken]
        if len(some):
            points = self._draw_back(victim, x[some], labels[some], points[broken])
            distance = lengths(points.to(torch.float64) - x[some].to(torch.float64), self.attack.p)
            nearer = distance < best.radius[some]
            best.points[some[nearer]] = points[nearer]
            best.radius[some[nearer]] = distance[nearer]
        return broken

    def _draw_back(self, victim: Victim, x: Tensor, labels: Tensor, points: Tensor) -> Tensor:
        """The broken point nearest to the input on the segment between them, as far as halving finds it."""
        near = self._near(x, lengths(points.to(torch.float64) - x.to(torch.float64), self.attack.p))
        center = x.to(torch.float64)
        offset = points.to(torch.float64) - center
        stands, falls = torch.zeros_like(near.radius), torch.ones_like(near.radius)
        for _ in range(self.pulls):
            middle = (stands + falls) / 2
            candidate = near.project(center + offset * per_sample(middle, offset))
            fell = victim.margin(candidate, labels) < 0
            points = torch.where(per_sample(fell, points), candidate, points)
            falls, stands = torch.where(fell, middle, falls), torch.where(fell, stands, middle)
        return points

    def _try_along_normal(self, victim: Victim, x: Tensor, labels: Tensor, rows: Tensor, best: Nearest) -> None:
        """Try the point as far from the input as the best one, in the direction of the normal there."""
        rows = rows[best.radius[rows] > 0]
        if not len(rows):
            return
        seen = victim.look(best.points[rows], labels[rows], Margin())
        normal = shortest_step(seen.gradient.to(torch.float64), self.attack.p)
        length = torch.linalg.vector_norm(normal.flatten(1), ord=self.attack.p, dim=1)
        unit = normal / per_sample(length.masked_fill(length == 0, 1.0), normal)
        radius = best.radius[rows]
        points = self._near(x[rows], radius).project(x[rows].to(torch.float64) + unit * per_sample(radius, unit))
        self._keep(victim, x, labels, rows, points, best)


def _next_radii(radius: Tensor, failed: Tensor) -> Tensor:
    """The radii to try, 0 to stop: the geometric mean of the ends, the lower one at least 0.81 of the upper one."""
    known = torch.isfinite(radius)
    upper = torch.where(known, radius, 0.0)
    # A failure at or above a success is one of the attack, not of the radius: look just inside the success.
    lower = torch.where(failed < upper, torch.maximum(failed, upper * 0.81), upper * 0.99)
    return torch.where(known & (upper > lower * (1 + 1e-6)), lower.sqrt() * upper.sqrt(), 0.0)
