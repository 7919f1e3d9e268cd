"""One-class training: regression of the distance to the rows, and HKR against complementary samples."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from lipkit._seeds import check_seed
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.losses import HKR
from lipkit.nn import orthonormal_
from lipkit.optim import StiefelMuon, split_orthonormal
from lipkit.sdf.one_class.distance_samples import distances, draw_around
from lipkit.sdf.one_class.health import Health
from lipkit.sdf.one_class.proposals import GaussianColumns, Proposal, check_positive
from lipkit.sdf.one_class.renewals import Alternating, Lazy, Renewal
from lipkit.sdf.resumable_training import Checkpoints, ResumableTraining
from lipkit.sdf.walk import Walk

# Share of the steps after which the rate falls, linearly, to 0.
_FLAT = 0.3
# Rows that distances are measured to; more of them are drawn once.
_REFERENCES = 10_000
# Looks at the network in one training.
_LOOKS = 20


@final
@dataclass(frozen=True)
class OneClass:
    """Training of a network of constant 1, so that it is large on the rows and falls with the distance to them.

        loss = distance mean_Z (f(z) - margin + d(z, rows))^2 + separation HKR(P, Q)/weight,
        HKR(P, Q) = E_P[weight (margin - f)+ - f] + E_Q[weight (margin + f)+ + f],

    where Z are points around the rows (`draw_around`), P the rows, and Q complementary samples, walked along the
    gradient towards the level -margin. The minimiser of either term over functions of constant 1 is margin minus the
    distance to the rows outside of them; the first finds it where rows are near, the second sees the whole domain.

    Guarantee: none for the values. Weights that were orthonormal are so again at the end, and the constant of the
    network is proven afterwards, by `sdf.Network`. Where the classes touch, with densities p of the rows and q of the
    samples, the zero set of HKR moves outwards by margin (p - q)/(p + q): choose levels on rows that were held out.
    Cost: 2 + 2 walk_steps/updates passes a step, and one product of the batch with the rows.
    Reference: Béthune 2024, theorem 2 and algorithms 5 and 7, for HKR; the regression and the sum are ours.

    Args:
        margin: Margin of the hinge, in units of the rows; also what f should be on the rows.
        weight: Weight of the hinge against KR.
        distance: Factor on the regression of distances; 0 leaves it out.
        separation: Factor on HKR; 0 leaves it out.
        steps: Number of updates.
        batch: Points of the regression in one step; a quarter as many rows and complementary samples.
        rate: Learning rate of the first steps; it falls linearly to 0.
        proposal: Where complementary samples are proposed, and their domain.
        renewal: When they are walked anew.
        walk_steps: Steps of a walk.
        walk_rate: Share of the way that a walk would go at constant slope; see `Walk`.
        warm_up: Share of the steps without walks.
    """

    margin: float = 0.05
    weight: float = 100.0
    distance: float = 0.02
    separation: float = 1.0
    steps: int = 500
    batch: int = 256
    rate: float = 5e-3
    proposal: Proposal = field(default_factory=GaussianColumns)
    renewal: Renewal = field(default_factory=Lazy)
    walk_steps: int = 4
    walk_rate: float = 1.0
    warm_up: float = 0.1

    def __post_init__(self) -> None:
        for name in ("margin", "weight", "rate", "walk_rate"):
            check_positive(name, getattr(self, name))
        for name in ("distance", "separation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} is a finite number >= 0, got {getattr(self, name)}.")
        if self.distance == 0 and self.separation == 0:
            raise ArgumentError("distance and separation are both 0, so there is nothing to learn; give one of them.")
        for name, least in (("steps", 1), ("batch", 4), ("walk_steps", 0)):
            if int(getattr(self, name)) != getattr(self, name) or getattr(self, name) < least:
                raise ArgumentError(f"{name} is a whole number of at least {least}, got {getattr(self, name)}.")
        if not 0 <= self.warm_up <= 1:
            raise ArgumentError(f"warm_up is a share of the steps, in [0, 1], got {self.warm_up}.")

    def __call__(
        self,
        model: nn.Module,
        rows: Float[Tensor, "n *shape"],
        seed: int = 0,
        checkpoints: Checkpoints | None = None,
    ) -> tuple[Health, ...]:
        """Train a model of constant 1 on rows, and give the journal of its health.

        Args:
            model: Takes inputs of the shape and type of the rows to one output each. Each weight must be plain and
                orthonormal, or computed by a layer of `lipkit.nn`.
            rows: Samples of the one class, two at least, on the device of the model.
            seed: Where all random numbers start.
            checkpoints: Keeps the state of the training, which then goes on where it was stopped.
        """
        _check_rows(rows)
        optimizers, tied = _optimizers(model, self.rate)
        source = torch.Generator(rows.device).manual_seed(check_seed(seed))
        flat = rows.flatten(1)
        order = torch.randperm(len(flat), device=rows.device, generator=source)[:_REFERENCES]
        run = _Run(self, model, rows, flat[order].contiguous(), source)
        model.train()
        journal: list[Health] = []
        settings, first = {**vars(self), "seed": seed}, 0
        training = ResumableTraining(settings, (rows,), model, optimizers, source)
        if checkpoints is not None and (left := checkpoints.load()) is not None:
            first, more = training.resume(left)
            run.resume(more["samples"])
            journal = [Health(**one) for one in more["journal"]]
        for step in range(first, self.steps):
            rate = self.rate * min(1.0, (self.steps - step) / (self.steps * (1 - _FLAT)))
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.zero_grad()
            loss = run.loss(step)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            if (step + 1) % max(1, self.steps // _LOOKS) == 0 or step + 1 == self.steps:
                journal.append(run.look(step, loss))
            if checkpoints is not None:
                more = {"samples": run.state(), "journal": [vars(one) for one in journal]}
                checkpoints.after_update(step + 1, self.steps, partial(training.state, step + 1, more))
        orthonormal_(tied)
        model.eval()
        if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
            raise NonFiniteError(f"Training ended with weights that are not finite; lower the rate {self.rate:g}.")
        return tuple(journal)


@final
class _Run:
    """The state of one training: its rows, its random numbers, and the complementary samples of the moment."""

    def __init__(
        self, recipe: OneClass, model: nn.Module, rows: Tensor, references: Tensor, source: torch.Generator
    ) -> None:
        self._recipe, self._model, self._rows, self._references = recipe, model, rows, references
        self._source = source
        low, high = recipe.proposal.box(rows)
        self._walk = Walk(-recipe.margin, recipe.walk_steps, recipe.walk_rate, low, high)
        self._hkr = HKR(recipe.margin, recipe.weight, scale=1 / recipe.weight)
        self._walker, self._proposals, self._walked = model, rows[:0], rows[:0]

    def state(self) -> dict[str, Any]:
        walker = None if self._walker is self._model else self._walker.state_dict()
        return {"walker": walker, "proposals": self._proposals, "walked": self._walked}

    def resume(self, state: Mapping[str, Any]) -> None:
        if state["walker"] is not None:
            self._walker = copy.deepcopy(self._model).requires_grad_(False)
            self._walker.load_state_dict(state["walker"])
        self._proposals, self._walked = (state[name].to(self._rows) for name in ("proposals", "walked"))

    def loss(self, step: int) -> Float[Tensor, ""]:
        recipe, given, points, target = self._recipe, self._rows[:0], self._rows[:0], self._rows.new_zeros(0)
        if recipe.distance:
            points = draw_around(self._references, recipe.batch, self._source)
            target = recipe.margin - distances(points, self._references)
            points = points.view(-1, *self._rows.shape[1:])
        if recipe.separation:
            self._renew(step)
            given = self._pick()
        walked = self._walked[: len(given)]
        # One pass for all: with networks this small the number of operations is most of the cost.
        scores = self._model(torch.cat([points, given, walked])).flatten()
        loss = scores.new_zeros(())
        if recipe.distance:
            loss = loss + recipe.distance * (scores[: len(points)] - target).square().mean()
        if recipe.separation:
            rest = scores[len(points) :]
            signs = torch.ones_like(rest)
            signs[len(given) :] = -1
            loss = loss + recipe.separation * self._hkr(rest, signs)
        return loss

    def look(self, step: int, loss: Tensor) -> Health:
        if not len(self._walked):
            self._draw(walks=True)
        return Health.look(step + 1, loss, self._model, self._pick(), self._proposals, self._walked)

    def _pick(self) -> Tensor:
        count = self._recipe.batch // 4
        chosen = torch.randint(len(self._rows), (count,), device=self._rows.device, generator=self._source)
        return self._rows[chosen]

    def _renew(self, step: int) -> None:
        renewal = self._recipe.renewal
        due = step % renewal.updates == 0
        if isinstance(renewal, Alternating) and due:
            self._walker = copy.deepcopy(self._model).requires_grad_(False)
        if isinstance(renewal, Alternating) or due:
            self._draw(walks=step >= self._recipe.warm_up * self._recipe.steps)

    def _draw(self, walks: bool) -> None:
        self._proposals = self._recipe.proposal.draw(self._rows, self._recipe.batch // 4, self._source)
        self._walked = (
            self._walk.toward(self._walker, self._proposals, generator=self._source) if walks else self._proposals
        )


def _check_rows(rows: Tensor) -> None:
    if rows.ndim < 2 or len(rows) < 2:
        raise ShapeError(f"One-class training needs two rows or more with an axis each, got {tuple(rows.shape)}.")
    if not bool(torch.isfinite(rows).all()):
        raise NonFiniteError("Some rows have entries that are NaN or infinite; remove or fill them first.")


def _optimizers(model: nn.Module, rate: float) -> tuple[list[torch.optim.Optimizer], list[nn.Parameter]]:
    """The optimizers of plain orthonormal weights and of all other numbers, and those weights."""
    free = {id(p) for m in model.modules() if isinstance(m, ParametrizationList) for p in m.parameters()}
    plain = [p for p in model.parameters() if id(p) not in free]
    tied = split_orthonormal(model).orthonormal if any(p.ndim >= 2 for p in plain) else []
    kept = {id(p) for p in tied}
    loose = [name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in free | kept]
    if loose:
        raise ArgumentError(
            f"Nothing keeps the constant of the weight {loose[0]}: take layers of lipkit.nn, or start plain layers "
            "with torch.nn.init.orthogonal_."
        )
    others = [p for p in model.parameters() if id(p) not in kept]
    found: list[torch.optim.Optimizer] = [torch.optim.Adam(others, rate)] if others else []
    # Many small matrices move at every fourth step only, four times as far: most of the cost of a step otherwise.
    return ([StiefelMuon(tied, rate, every=4)] if tied else []) + found, tied
