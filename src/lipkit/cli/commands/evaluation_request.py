"""The request of `lipkit certify` and `lipkit attack`: its options, and what they mean."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from lipkit.certify import LocalRadii
from lipkit.certify.attacks import PGD, Attack, EveryClass, WorstOf, usual_attacks
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.cli.inputs import option_words
from lipkit.cli.inputs.adapted_model import Adaptation, parse_classes
from lipkit.cli.inputs.datasets import test_set
from lipkit.cli.options import PYTHON_MODEL, WEIGHTS, argument, option, spell_command
from lipkit.cli.training import Goal
from lipkit.data import Examples
from lipkit.errors import ArgumentError

# Offered by `attack` alone; a certificate has no steps.
ATTACK_OPTIONS = ("attack", "steps", "restarts", "every_class", "box")
ATTACK_STEPS = 40
# Written even where they have their defaults, so that a command says what it is about.
_EXPLICIT = ("data", "eps", "device", "seed")

# How the model's inputs and outputs are meant; on record where they are given.
_OF_INPUTS = ("output", "normalize", "label", "classes")


@final
@dataclass(frozen=True)
class EvaluationRequest:
    """The share of test samples whose class is proven within each radius; with --out, a report."""

    model: str = argument(PYTHON_MODEL, "MODEL")
    data: str = option("digits, mnist:FOLDER, fashion-mnist:FOLDER, cifar10:FOLDER, a .npz file with x and y, or .csv.")
    eps: str = option("Radii in increasing order, such as 36/255,72/255.")
    weights: Path | None = option(WEIGHTS, None)
    output: str | None = option("Entry of the model's output, by name or position, if it is no tensor.", None)
    normalize: str | None = option(
        "MEAN,STD before the model; M1:M2:M3,S1:S2:S3 for channels. Radii stay in data units.", None
    )
    label: str | None = option("Column of a .csv file with the labels; by default the last.", None)
    classes: str | None = option("Names of the classes: a,b,c or a file with one in each line.", None)
    regression: bool = option("No classes: how far each output can move.", False, "--regression")
    method: str = option("Method for everything before the last layer.", option_words.DEFAULT)
    norm: str = option("Norm of the radii: 2, 1 or inf.", "2")
    local: bool = option("Prove by what holds near each sample where the constant does not.", False, "--local")
    local_seconds: float | None = option("Time for each sample with --local; 10 by default.", None)
    bisections: int = option("With --local, so many more balls to find how far each sample is certified.", 0, least=0)
    samples: int | None = option("Only the first so many.", None, least=1)
    attack: str = option("pgd; or worst, several attacks and the worst of them for each sample.", "pgd")
    steps: int = option("Steps of projected gradient descent.", 0, least=1)
    restarts: int = option("Random starts.", 1, least=1)
    every_class: bool = option("Aim at each wrong class in turn.", False)
    box: str | None = option("low,high of every coordinate, such as 0,1.", None)
    out: Path | None = option("Folder for results as they come, and the report; the same continues.", None)
    device: str = option("cpu or cuda.", "cpu")
    seed: int = option("Draws weights where there are none, and attacks.", 0)
    json: Path | None = option("File for the shares.", None)

    @property
    def adaptation(self) -> Adaptation:
        """How the model and the data are made to fit each other."""
        return Adaptation(self.output, self.normalize, self.classes)

    def test_set(self) -> Examples:
        """The samples to be evaluated, as many as asked for."""
        names = None if self.classes is None else parse_classes(self.classes)
        found = test_set(self.data, self.label, names)
        return found if self.samples is None else found.at(range(min(self.samples, len(found))))

    @property
    def goal(self) -> Goal:
        """Radii, norm, attack and number of samples; refuses words that mean none."""
        eps, p = parse_radii(self.eps), parse_norm(self.norm)
        return Goal(tuple(eps), p, self._attack(max(eps), p), self.samples, self._local())

    @property
    def command(self) -> str:
        """The command that does it again."""
        return spell_command("attack" if self.steps else "certify", self, _EXPLICIT)

    @property
    def options(self) -> dict[str, str]:
        """Every setting that changes the shares, as text; files are told apart by their hashes instead."""
        goal = self.goal
        inside = f", inside the box {self.box}" if self.box else ""
        return {
            "eps": ", ".join(map(said_radius, goal.eps)),
            "norm": f"l{goal.p:g}",
            "method": self.method,
            **{name: value for name in _OF_INPUTS if (value := getattr(self, name)) is not None},
            **({} if goal.local is None else {"local": _say_local(goal.local)}),
            "attack": "none" if goal.attack is None else f"{goal.attack.name}: {goal.attack.settings}{inside}",
            "seed": str(self.seed),
        }

    def _local(self) -> LocalRadii | None:
        if self.local:
            seconds = LocalRadii().seconds if self.local_seconds is None else self.local_seconds
            if not seconds > 0:
                raise ArgumentError(f"--local-seconds is the time for one sample, > 0, got {seconds:g}.")
            return LocalRadii(seconds, self.bisections)
        if self.local_seconds is not None or self.bisections:
            raise ArgumentError("--local-seconds and --bisections belong to --local; add it, or leave them out.")
        return None

    def _attack(self, eps: float, p: float) -> Attack | None:
        if self.attack not in ("pgd", "worst"):
            raise ArgumentError(f"--attack is pgd or worst, got {self.attack!r}.")
        if not self.steps:
            return None
        low, high = option_words.parse_ends(self.box) if self.box else (-math.inf, math.inf)
        if self.attack == "worst":
            if self.every_class:
                raise ArgumentError("--attack worst aims at every class already; leave out --every-class.")
            return WorstOf(eps, p, low, high, usual_attacks(self.steps, self.restarts))
        attack = PGD(eps, p, low, high, steps=self.steps, restarts=self.restarts)
        return replace(attack, objective=EveryClass()) if self.every_class else attack


def _say_local(local: LocalRadii) -> str:
    return f"near each sample, {local.seconds:g} s each, {local.bisections} bisections"


def parse_radii(text: str, name: str = "--eps") -> list[float]:
    """Numbers and fractions with commas between them, given to the option `name`."""
    try:
        return [_parse_fraction(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(f"{name} lists radii such as 0.1,0.5 or 36/255,72/255, got {text!r}.") from None


def _parse_fraction(text: str) -> float:
    top, slash, bottom = text.partition("/")
    return float(top) / float(bottom) if slash else float(top)


def parse_norm(text: str) -> float:
    """The exponent of a norm."""
    try:
        p = float(text)
    except ValueError:
        p = math.nan
    if p not in (1.0, 2.0, math.inf):
        raise ArgumentError(f"--norm is 1, 2 or inf, got {text!r}.")
    return p
