"""How a detector is trained: its network, the points or flats that its exact distance is measured to."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit import sdf
from lipkit.errors import ArgumentError
from lipkit.estimators.detector_field import DetectorField
from lipkit.estimators.standardised import Standardise
from lipkit.nn import condense
from lipkit.sdf.one_class import Health, OneClass, orthogonal_mlp
from lipkit.sdf.resumable_training import Checkpoints

# Rows that exact distances are measured to; of more a random choice is kept.
_NEAREST = 10_000
# Updates for each row that a small table is worth.
_STEPS_A_ROW = 5

Given = nn.Module | Callable[[], nn.Module] | None


@final
@dataclass(frozen=True)
class DetectorTraining:
    """The settings of `OneClassSDF` that shape its score.

    Args:
        recipe: How the network is trained.
        network: A module of constant 1, a function that makes one, or None for orthogonal layers.
        widths: Of the orthogonal layers.
        nearest: Share of the exact distance; 1 trains no network.
        neighbors: Share of the rows whose mean distance it is; 0 for the nearest row alone.
        flats: Number of flats that it is measured to; 0 for rows.
        flat_dim: Their dimension.
    """

    recipe: OneClass
    network: Given
    widths: Sequence[int]
    nearest: float
    neighbors: float
    flats: int
    flat_dim: int

    def __call__(
        self, first: Standardise, inner: Float64[Tensor, "n d"], seed: int, checkpoints: Checkpoints | None = None
    ) -> tuple[DetectorField, tuple[Health, ...]]:
        """The score, from standardised rows, and the journal of the training."""
        # Before the training, which would be lost where rows have no such flats.
        exact = self._exact(inner, seed) if self.nearest else None
        model, health = None, ()
        if self.nearest < 1:
            given = make_network(self.network, inner.shape[1], self.widths, seed)
            kind = next(iter(given.parameters()), torch.empty(0))
            health = self.recipe(given, inner.to(kind), seed, checkpoints)
            model = plain(given)
        return DetectorField(first, model, exact, self.nearest, self.recipe.margin), health

    def _exact(self, inner: Tensor, seed: int) -> sdf.Points | sdf.Flats:
        if len(inner) > _NEAREST:
            inner = inner[torch.randperm(len(inner), generator=torch.Generator().manual_seed(seed))[:_NEAREST]]
        if not self.flats:
            return distance_to_rows(inner, self.neighbors)
        if self.flats > len(inner) or self.flat_dim >= inner.shape[1]:
            raise ArgumentError(
                f"{len(inner)} rows of {inner.shape[1]} columns have no {self.flats} flats of dimension "
                f"{self.flat_dim}; set flats to {len(inner)} and flat_dim to {inner.shape[1] - 1} at most."
            )
        return sdf.Flats.fit(inner, self.flats, self.flat_dim, seed=seed)


def distance_to_rows(rows: Float64[Tensor, "n d"], share: float) -> sdf.Points:
    """Minus the mean distance to the nearest rows, a share of all of them; to the nearest one if the share is 0."""
    return sdf.Points(rows, max(1, round(share * len(rows))), mean=True)


def stored_distance(tensors: Mapping[str, Tensor], flats: int, neighbors: float) -> sdf.Points | sdf.Flats:
    """The exact distance of a detector that was stored."""
    if flats:
        return sdf.Flats(tensors["origins"], tensors["bases"])
    return distance_to_rows(tensors["rows"], neighbors)


def steps_for(steps: int, rows: int) -> int:
    """The updates that so many rows are worth."""
    return min(steps, _STEPS_A_ROW * rows)


def make_network(given: Given, width: int, widths: Sequence[int], seed: int) -> nn.Module:
    """The untrained network: orthogonal layers, a copy of a module, or what a function makes."""
    if given is None:
        return orthogonal_mlp(width, tuple(widths), torch.Generator().manual_seed(seed))
    model = copy.deepcopy(given) if isinstance(given, nn.Module) or not callable(given) else given()
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"network is a torch.nn.Module or makes one, got {type(model).__name__}.")
    return model


def plain(model: nn.Module) -> nn.Module:
    """The network with plain weights in float64, for scores."""
    return condense(model, torch.float64).cpu().eval().requires_grad_(False)
