"""The origin of the numbers of a report: the command, the machine, the test data, the attack."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lipkit.bounds.certificates.certificate import Software
from lipkit.certify.attacks import Attack
from lipkit.data import Examples


@final
@dataclass(frozen=True)
class Prints:
    """SHA-256 of what a report rests on, "" for what is not known.

    `weights` is that of the file of weights and `code` that of the file in which the recipe's class, or the model, is
    written, as sha256sum tells them; `inputs` and `labels` are those of the test samples that were evaluated, as the
    records of `accuracy` have them.
    """

    weights: str = ""
    inputs: str = ""
    labels: str = ""
    code: str = ""


@final
@dataclass(frozen=True)
class About:
    """The origin of the numbers: the command that makes them again, the model, the machine.

    `date` is the caller's, as it should be printed. What was trained here has a `recipe`, and `seconds` of the
    training; a model that was given as it is has neither ("" and None), and `model` names it. `fields` are the settings
    of the recipe, or of the evaluation, as text; `watched` says what number the journal has beside the loss.
    """

    command: str
    date: str
    seconds: float | None
    seed: int
    device: str
    recipe: str
    model: str
    fields: tuple[tuple[str, str], ...]
    software: Software
    prints: Prints
    watched: str

    @classmethod
    def here(
        cls, *, command: str, date: str, seconds: float | None, seed: int, device: str, recipe: str = "",
        model: str = "", fields: Mapping[str, str], prints: Prints | None = None, watched: str = "",
    ) -> "About":  # fmt: skip
        """With the versions of what runs now."""
        prints = Prints() if prints is None else prints
        texts = tuple(fields.items())
        return cls(command, date, seconds, seed, device, recipe, model, texts, Software.here(), prints, watched)


@final
@dataclass(frozen=True)
class DataUsed:
    """The test samples that were evaluated: name ("" if it has none), their number, the shape of one, their entries.

    All entries lie in [`low`, `high`], and both ends occur.
    """

    name: str
    samples: int
    shape: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def of(cls, test: Examples) -> "DataUsed":
        """Of these examples."""
        inputs = test.inputs
        return cls(test.name, len(test), tuple(inputs.shape[1:]), float(inputs.min()), float(inputs.max()))


@final
@dataclass(frozen=True)
class AttackUsed:
    """The attack that was run at every radius: its name, its settings in words, and the box its points stay in.

    `steps` and `restarts` are None for attacks that have none, or none that lipkit knows.
    """

    name: str
    settings: str
    steps: int | None
    restarts: int | None
    low: float
    high: float

    @classmethod
    def of(cls, attack: Attack) -> "AttackUsed":
        """Of this attack."""
        return cls(
            attack.name, attack.settings, getattr(attack, "steps", None), getattr(attack, "restarts", None),
            attack.low, attack.high,
        )  # fmt: skip

    @property
    def boxed(self) -> bool:
        """Whether the points that it tries are limited to a box."""
        return math.isfinite(self.low) or math.isfinite(self.high)
