"""Attacks of the package torchattacks, held to our rules."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit.certify.attacks._base import Attack
from lipkit.certify.attacks.attacked_model import CallableModule, Victim, without_parameters
from lipkit.certify.attacks.neighbourhood import Neighbourhood
from lipkit.errors import ArgumentError


def _refuse_missing_attack(*_: Any) -> Any:
    raise ArgumentError(
        "`TorchAttacks` needs a function that builds an attack, such as "
        "TorchAttacks(eps, low=0, high=1, build=lambda model, eps: torchattacks.PGDL2(model, eps=eps))."
    )


@final
@dataclass(frozen=True)
class TorchAttacks(Attack):
    """An attack of torchattacks 3, built for the radius of each sample; the result is projected and checked by us.

    torchattacks knows inputs in [0, 1] only: others are mapped there, u = (x - low)/(high - low), and the radius is
    divided by high - low, in the model as well. Give `low` and `high`. Samples with one radius are run together. Its
    attacks draw from torch's global generator, whatever `generator` is; most want images (n, channels, height, width).

    Guarantee: inside the ball and the box, as for every `Attack`. Reference: Kim 2020.

    Args:
        build: Makes an attack of torchattacks from a model and a radius.
    """

    build: Callable[[nn.Module, float], Any] = _refuse_missing_attack

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ArgumentError(f"torchattacks needs a finite box, got [{self.low}, {self.high}]; give low and high.")

    @property
    def name(self) -> str:
        """The name of the package; the attack itself is built for each radius."""
        return "torchattacks"

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        span = self.high - self.low
        module = CallableModule(lambda u: victim.model(self.low + span * u), near.center.device).eval()
        unit = ((near.center - self.low) / span).clamp(0, 1)
        found = near.center.clone()
        for radius in near.radius.unique().tolist():
            rows = (near.radius == radius).nonzero().squeeze(1)
            with torch.enable_grad(), without_parameters(victim.model):
                moved = self._build_attack(module, radius / span)(unit[rows], labels[rows].long())
            found[rows] = self.low + span * moved.detach().to(found)
        return found

    def _build_attack(self, module: nn.Module, eps: float) -> Any:
        try:
            return self.build(module, eps)
        except ImportError as missing:
            if missing.name != "torchattacks":
                raise
            raise ArgumentError("TorchAttacks needs torchattacks; `pip install torchattacks` brings it.") from missing
