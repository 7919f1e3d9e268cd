"""Small models of every construction that bounds meet, with a region each: few enough neurons for every method."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bound import Metric
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.capture import capture
from support.networks.dense_norms import largest, largest_of_pairs
from support.networks.local_oracles import points_in

RADIUS, POINTS = 0.5, 1000


@final
class Attention(nn.Module):
    """One head of softmax attention over three tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.reshape(-1, 3, 2)).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v).flatten(1)


@final
class Combined(nn.Module):
    """The sum, the product or the concatenation of what branches make of one input."""

    def __init__(self, combine: Callable[[list[Tensor]], Tensor], *branches: nn.Module) -> None:
        super().__init__()
        self.combine, self.branches = combine, nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return self.combine([branch(x) for branch in self.branches])


def _residual(width: int) -> nn.Module:
    inner = nn.Sequential(nn.Linear(width, width + 1), nn.ReLU(), nn.Linear(width + 1, width))
    return Combined(lambda parts: parts[0] + parts[1], nn.Identity(), inner)


def _layers(*sizes: int, between: Callable[[], nn.Module]) -> nn.Module:
    parts = [part for n, m in pairwise(sizes) for part in (nn.Linear(n, m), between())]
    return nn.Sequential(*parts[:-1])


# name -> what builds it, and the shape of an input.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "affine": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), (4,)),
    "affine convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1, groups=2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)),
        (2, 4, 4),
    ),
    "ReLU": (lambda: _layers(3, 5, 4, 3, between=nn.ReLU), (3,)),
    "kinks elsewhere": (
        lambda: nn.Sequential(
            nn.Linear(3, 4), nn.LeakyReLU(0.3), nn.Linear(4, 4), nn.Hardtanh(-0.5, 0.8), nn.Linear(4, 3)
        ),
        (3,),
    ),
    "smooth": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3), nn.Softplus()),
        (3,),
    ),
    "residual": (lambda: nn.Sequential(_residual(3), _residual(3)), (3,)),
    "joined": (
        lambda: nn.Sequential(
            Combined(lambda parts: torch.cat(parts, 1), nn.Identity(), nn.Sequential(nn.Linear(3, 3), nn.ReLU())),
            nn.Linear(6, 3),
        ),
        (3,),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 4, 3, 2, groups=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (1, 4, 4),
    ),
    "padded around": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"), nn.BatchNorm1d(2), nn.ReLU(),
            nn.Conv1d(2, 1, 3, padding=2, dilation=2, padding_mode="reflect"), nn.Flatten(),
        ),
        (2, 5),
    ),
    "maxima": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(8, 3)), (1, 4, 4)
    ),
    "softmax": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 3)), (4,)),
    "normalised": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)), (4,)),
    "attention": (Attention, (6,)),
    "gate": (
        lambda: Combined(
            lambda parts: parts[0] * parts[1], nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()), nn.Linear(4, 3)
        ),
        (4,),
    ),
}  # fmt: skip
# No finite constant on the whole space.
UNBOUNDED = {"attention", "gate"}


@final
@dataclass(frozen=True, eq=False)
class Example:
    """A model, its network, a ball and a box around a point, and dense Jacobians of the model there."""

    name: str
    module: nn.Module
    network: Network
    center: Tensor
    _found: dict[tuple[str, Metric, bool], np.ndarray] = field(default_factory=dict)

    @property
    def regions(self) -> dict[str, Region]:
        """The whole space first."""
        return {
            "everywhere": Everywhere(),
            "ball": Ball(self.center, RADIUS),
            "box": Box(self.center - RADIUS / 2, self.center + RADIUS / 2),
        }

    def steepest(self, place: str, metric: Metric, pairs: bool = False) -> np.ndarray:
        """The largest norm of a Jacobian of the module itself, or of its differences of rows, at points of a region."""
        found = self._found.get((place, metric, pairs))
        if found is None:
            found = (largest_of_pairs if pairs else largest)(self._jacobians[place], metric)
            self._found[place, metric, pairs] = found
        return found

    @cached_property
    def _jacobians(self) -> dict[str, np.ndarray]:
        generator = torch.Generator().manual_seed(1)
        sizes = torch.logspace(-2, 2, POINTS, dtype=torch.float64).reshape(-1, *(1,) * self.center.ndim)
        anywhere = sizes * torch.randn(POINTS, *self.center.shape, dtype=torch.float64, generator=generator)
        points = {place: points_in(it, POINTS) for place, it in self.regions.items() if it != Everywhere()}
        points["everywhere"] = torch.cat([anywhere, *points.values()])
        jacobian = torch.func.vmap(torch.func.jacrev(lambda x: self.module(x[None])[0].flatten()))
        return {place: jacobian(some).detach().flatten(2).numpy() for place, some in points.items()}


@cache
def example(name: str) -> Example:
    """The model of that name in float64, always with the same weights."""
    build, shape = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = build().double().eval()
        center = torch.randn(shape, dtype=torch.float64)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d) and part.running_var is not None:
                part.running_var.uniform_(0.5, 2.0)
            if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d):
                # Steeper than torch's, so that constants differ more from place to place.
                part.weight.data *= 2
    module.requires_grad_(False)
    return Example(name, module, capture(module, center[None]), center)
