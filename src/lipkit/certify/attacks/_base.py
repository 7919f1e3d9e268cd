"""The base of attacks: frozen dataclasses that are called."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from lipkit.certify.attacks.attacked_model import Classifier, Victim, attack_on
from lipkit.certify.attacks.neighbourhood import NORMS, Neighbourhood
from lipkit.errors import ArgumentError, NotProvenError, ShapeError


@dataclass(frozen=True)
class Attack(ABC):
    """A search for inputs of another class within `eps` of given ones; abstract.

    The result has the shape and dtype of the inputs and lies in {z : ||z - x||_norm <= eps, low <= z <= high}: the true
    distance of the stored numbers, not only a rounded one. A sample counts as broken when its margin is negative by
    more than 8 units in the last place of the largest logit, so that neither a tie nor a last digit stops the search;
    whether a point breaks a certificate is decided by `accuracy`, in float64. Not finding a point proves nothing
    either: accuracy under attack is an upper bound of the robust accuracy.

    The model may be any callable from inputs to logits. A module is run in evaluation mode and left as it was:
    its modes, parameters, their `grad` and `requires_grad`. `low` and `high` are in the units of the inputs.

    Args:
        eps: Radius of the ball around each input.
        p: Exponent of the norm: 1, 2 or infinity.
        low: Smallest valid entry of an input.
        high: Largest valid entry of an input.
    """

    eps: float
    p: float = 2.0
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise ArgumentError(f"An attack needs a finite eps >= 0, got {self.eps}.")
        if self.p not in NORMS:
            raise ArgumentError(f"An attack knows the norms 1, 2 and inf, got {self.p}.")
        if not self.low < self.high:
            raise ArgumentError(f"The box needs low < high, got low={self.low}, high={self.high}.")

    @property
    def name(self) -> str:
        """The name of the search, without its settings."""
        return type(self).__name__

    @property
    def settings(self) -> str:
        """The settings of the search in words, without norm, radius and box; "" for none."""
        return ""

    @final
    def __str__(self) -> str:
        return f"{self.name} in l{self.p:g} ({', '.join(filter(None, (f'eps {self.eps:g}', self.settings)))})"

    @abstractmethod
    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        """Points anywhere; they are projected and checked by the caller."""

    @final
    def __call__(
        self,
        model: Classifier | nn.Module,
        x: Float[Tensor, "n *shape"],
        labels: Int[Tensor, " n"],
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n *shape"]:
        """Adversarial inputs: a broken one where one was found, else the one with the smallest margin seen.

        `generator` makes a run repeatable; without it torch's global one is used.
        """
        radii = torch.full((len(x),), self.eps, dtype=torch.float64, device=x.device)
        return self.within(model, x, labels, radii, generator=generator)

    @final
    def within(
        self,
        model: Classifier | nn.Module,
        x: Float[Tensor, "n *shape"],
        labels: Int[Tensor, " n"],
        radii: Float64[Tensor, " n"],
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "n *shape"]:
        """The same with a radius for each sample instead of `eps`, such as its certified one."""
        if x.ndim < 2:
            raise ShapeError(f"Inputs need a batch axis and at least one more, got shape {tuple(x.shape)}.")
        if not x.is_floating_point():
            raise ArgumentError(f"Inputs must be floating point, got {x.dtype}; convert them as in training.")
        if labels.shape != x.shape[:1] or labels.is_floating_point() or labels.is_complex():
            raise ShapeError(
                f"Labels are one class index for each of {len(x)} inputs, got shape {tuple(labels.shape)} and "
                f"{labels.dtype}."
            )
        # One draw whatever the samples are: what is drawn later depends on this number only.
        device = "cpu" if generator is None else generator.device
        seed = int(torch.randint(2**48, (), generator=generator, device=device))
        # Copies made here can be differentiated, also where the caller is in inference mode.
        with torch.inference_mode(False), attack_on(model) as victim:
            near = Neighbourhood(
                x.detach().clone(),
                radii.detach().to(x.device, torch.float64, copy=True),
                self.p,
                self.low,
                self.high,
            )
            if not len(x):
                return near.center
            found = near.project(self._search(victim, near, labels.to(x.device, copy=True), seed).detach())
        if not bool(near.contains(found).all()):
            raise NotProvenError(
                f"{self} left the ball of radius {self.eps:g}; the inputs may be beyond the range of floats."
            )
        return found
