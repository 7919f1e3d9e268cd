"""Attacks of the package foolbox, held to our rules."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from lipkit.certify.attacks._base import Attack
from lipkit.certify.attacks.attacked_model import CallableModule, Victim, without_parameters
from lipkit.certify.attacks.neighbourhood import Neighbourhood
from lipkit.errors import ArgumentError


def _refuse_missing_attack(*_: Any, **__: Any) -> Any:
    raise ArgumentError(
        "`Foolbox` needs an attack, such as Foolbox(eps, low=0, high=1, attack=foolbox.attacks.L2PGD())."
    )


@final
@dataclass(frozen=True)
class Foolbox(Attack):
    """An attack object of foolbox 3, called with the radius of each sample; the result is projected and checked by us.

    foolbox wants a box: give `low` and `high`. Samples with one radius are run together. Its attacks draw
    from torch's global generator, whatever `generator` is.

    Guarantee: inside the ball and the box, as for every `Attack`. Reference: Rauber, Brendel, Bethge 2017.

    Args:
        attack: An attack object of foolbox, such as `foolbox.attacks.L2PGD()`.
    """

    attack: Callable[..., Any] = _refuse_missing_attack

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ArgumentError(f"foolbox needs a finite box, got [{self.low}, {self.high}]; give low and high.")

    @property
    def name(self) -> str:
        """The names of the package and of its attack."""
        return f"foolbox {type(self.attack).__name__}"

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        try:
            import foolbox  # pyright: ignore[reportMissingImports]
        except ImportError as missing:
            raise ArgumentError("Foolbox needs foolbox; pip install 'lipkit[attacks]' brings it.") from missing
        module = CallableModule(victim.model, near.center.device).eval()
        made = foolbox.PyTorchModel  # pyright: ignore[reportPrivateImportUsage]
        model = made(module, bounds=(self.low, self.high), device=near.center.device)
        found = near.center.clone()
        for radius in near.radius.unique().tolist():
            rows = (near.radius == radius).nonzero().squeeze(1)
            with torch.enable_grad(), without_parameters(victim.model):
                found[rows] = self.attack(model, near.center[rows], labels[rows].long(), epsilons=radius)[1].detach()
        return found
