"""The result of an evaluation: counts with confidence intervals, overall and for each class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from lipkit.bound import Kind
from lipkit.certify.evaluate.proportion import Proportion
from lipkit.certify.evaluate.records import SampleResult
from lipkit.errors import ArgumentError
from lipkit.rounding.slacks import ALMOST_ONE


def said_radius(eps: float) -> str:
    """A radius as a text that is exactly it: 0.25, 36/255, or all its digits."""
    short = f"{eps:g}"
    if float(short) == eps:
        return short
    parts = round(eps * 255)
    return f"{parts}/255" if parts / 255 == eps else repr(eps)


def said_unproven(count: int) -> str:
    """The remark about samples that an attack broke without a proof."""
    return (
        f"Of the samples broken by the attack, {count} are so by observation in float64: what is proven of its "
        "rounding in this model is too loose to prove more."
    )


# The remark about radii from a constant that does not say what it was computed from.
STATED = "The constant was stated by the user, not computed from this model: the radii are worth as much as it is."


def said_local(count: int, total: int) -> str:
    """The remark about samples whose radii rest on what holds near them."""
    return f"The radii of {count} of {total} samples are proven by what holds near them, the others by the constant."


def said_otherwise(count: int, total: int) -> str:
    """The remark about samples that the model as it runs decides otherwise than in exact arithmetic."""
    return (
        f"The model as it runs, in its own precision, decides {count} of {total} samples otherwise than in exact "
        "arithmetic, which certificates are about."
    )


@final
@dataclass(frozen=True)
class Accuracies:
    """How many samples are right, certified at each radius, and right after an attack of each radius."""

    clean: Proportion
    certified: tuple[Proportion, ...]
    attacked: tuple[Proportion, ...] | None
    mean_radius: float


@final
@dataclass(frozen=True)
class Evaluation:
    """Clean, certified and attacked accuracy of a model on data, radius by radius.

    `certified[i]` counts samples whose label is proven for all perturbations of length at most `eps[i]` in l_`p`;
    `attacked[i]` those that are right and that the attack of that radius did not break. The truth lies between the two
    (as far as attacks are proven to succeed, see `unproven`). A sample whose label ties with another class is wrong
    everywhere. Intervals are about the population that the data was drawn from, each at the confidence `level` by
    itself; `failure` bounds the probability that the constant behind all radii is wrong.
    """

    eps: tuple[float, ...]
    p: float
    level: float
    failure: float
    overall: Accuracies
    classes: dict[int, Accuracies]
    samples: tuple[SampleResult, ...]

    @classmethod
    def of(
        cls, samples: Sequence[SampleResult], eps: Sequence[float], p: float, level: float, failure: float
    ) -> "Evaluation":
        """The counts of samples; failures of constants of single samples add up with that of the common one."""
        ordered = tuple(sorted(samples, key=lambda sample: sample.index))
        if not ordered:
            raise ArgumentError("An evaluation needs at least one sample, got an empty data set.")
        labels = sorted({sample.label for sample in ordered})
        by_class = {k: _shares([s for s in ordered if s.label == k], eps, level) for k in labels}
        total = min(failure + math.fsum(sample.failure for sample in ordered), ALMOST_ONE)
        return cls(tuple(eps), p, level, total, _shares(ordered, eps, level), by_class, ordered)

    @property
    def unproven(self) -> int:
        """How many samples an attack broke before our eyes, in float64, where its rounding is not bounded closely."""
        return sum(sample.unproven for sample in self.samples)

    @property
    def otherwise(self) -> int:
        """How many samples the model as it runs, in its own precision, decides otherwise than in exact arithmetic."""
        return sum(sample.otherwise for sample in self.samples)

    @property
    def local(self) -> int:
        """How many samples have a radius that is proven by what holds near them, not by the constant that was given."""
        return sum(bool(sample.proof) for sample in self.samples)

    @property
    def stated(self) -> bool:
        """Whether radii rest on a constant that somebody stated, instead of one that was computed from this model."""
        return any(sample.stated for sample in self.samples)

    def __str__(self) -> str:
        lines = [f"clean      {self.overall.clean}"]
        attacked = self.overall.attacked or (None,) * len(self.eps)
        for eps, certified, broken in zip(self.eps, self.overall.certified, attacked, strict=True):
            beside = "" if broken is None else f", attacked {broken.counted(Kind.UPPER)} ({broken.interval})"
            lines.append(f"l{self.p:g} {said_radius(eps):<8} certified {certified}{beside}")
        lines += [said_local(self.local, len(self.samples))] if self.local else []
        lines += [said_unproven(self.unproven)] if self.unproven else []
        lines += [said_otherwise(self.otherwise, len(self.samples))] if self.otherwise else []
        lines += [STATED] if self.stated else []
        return "\n".join(lines)


def _shares(samples: Sequence[SampleResult], eps: Sequence[float], level: float) -> Accuracies:
    total = len(samples)
    right = [sample.predicted == sample.label for sample in samples]
    certified = tuple(Proportion.of(sum(s.radius > e for s in samples), total, level) for e in eps)
    attacked = None
    if samples and samples[0].broken:
        attacked = tuple(Proportion.of(sum(not s.broken[i] for s in samples), total, level) for i in range(len(eps)))
    mean = math.fsum(sample.radius for sample in samples) / total
    return Accuracies(Proportion.of(sum(right), total, level), certified, attacked, mean)
