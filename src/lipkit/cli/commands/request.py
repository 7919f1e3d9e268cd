"""What `lipkit certify` and `lipkit attack` were asked for, and what it means."""

import math
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import final

from lipkit.certify.attacks import PGD, EveryClass
from lipkit.cli.inputs import option_words as names
from lipkit.cli.training import Goal
from lipkit.errors import ArgumentError

# Given without a word in front, or not part of what is repeated.
_APART = ("model", "json")
# Always written, so that a command says what it is about.
_ALWAYS = ("data", "eps", "device", "seed")


@final
@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line, as it was written."""

    model: str
    data: str
    eps: str
    weights: Path | None = None
    method: str = names.DEFAULT
    norm: str = "2"
    samples: int | None = None
    steps: int = 0
    restarts: int = 1
    every_class: bool = False
    box: str | None = None
    out: Path | None = None
    device: str = "cpu"
    seed: int = 0
    json: Path | None = None

    @property
    def goal(self) -> Goal:
        """Radii, norm, attack and number of samples; refuses words that mean none."""
        eps, p = _radii(self.eps), _norm(self.norm)
        return Goal(tuple(eps), p, self._attack(max(eps), p), self.samples)

    @property
    def command(self) -> str:
        """The command that does it again."""
        words = ["lipkit", "attack" if self.steps else "certify", self.model]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _APART or (field.name not in _ALWAYS and value == field.default):
                continue
            words.append(f"--{field.name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
        return shlex.join(words)

    @property
    def options(self) -> dict[str, str]:
        """What the shares depend on beside the files, as text."""
        goal = self.goal
        # The attack does not tell its box, on which its results depend.
        inside = f", inside the box {self.box}" if self.box else ""
        return {
            "eps": ", ".join(map(str, goal.eps)),
            "norm": f"l{goal.norm:g}",
            "method": self.method,
            "attack": "none" if goal.attack is None else f"{goal.attack}{inside}",
            "seed": str(self.seed),
        }

    def _attack(self, eps: float, p: float) -> PGD | None:
        if not self.steps:
            return None
        low, high = names.ends(self.box) if self.box else (-math.inf, math.inf)
        attack = PGD(eps, p, low, high, steps=self.steps, restarts=self.restarts)
        return replace(attack, objective=EveryClass()) if self.every_class else attack


def _radii(text: str) -> list[float]:
    try:
        return [_fraction(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(f"--eps lists radii such as 0.1,0.5 or 36/255,72/255, got {text!r}.") from None


def _fraction(text: str) -> float:
    top, slash, bottom = text.partition("/")
    return float(top) / float(bottom) if slash else float(top)


def _norm(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if found not in (1.0, 2.0, math.inf):
        raise ArgumentError(f"--norm is 1, 2 or inf, got {text!r}.")
    return found
