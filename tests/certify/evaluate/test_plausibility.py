"""Warnings: each absurd result gets its sentence, and ordinary ones get none."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lipkit import Bound, Kind
from lipkit.bound import Metric
from lipkit.certify import Evaluation, SampleResult, find_warnings
from lipkit.data import digits, moons

PIXELS = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0))
PIXELS[0, 0, 0, 0], PIXELS[1, 0, 0, 0] = 0.0, 1.0


def evaluate(
    eps: Sequence[float] = (36 / 255, 0.5), predicted: Sequence[int] = (0, 1) * 10, labels: Sequence[int] = (0, 1) * 10
) -> Evaluation:
    samples = [
        SampleResult(i, y, k, 0.3 if y == k else 0.0) for i, (y, k) in enumerate(zip(labels, predicted, strict=True))
    ]
    return Evaluation.of(samples, eps, 2.0, 0.95, 0.0)


def constant(value: float) -> Bound:
    return Bound(
        torch.tensor(math.log(value) if value else -math.inf, dtype=torch.float64), Kind.UPPER, "m", Metric(2.0, 2.0)
    )


def test_an_ordinary_result_gives_none() -> None:
    assert find_warnings(evaluate(), PIXELS, constant(1.6)) == ()
    # Shifted pixels have the same lengths; loose constants of ordinary networks are no mistake.
    assert find_warnings(evaluate(), PIXELS - 0.5, constant(1e6)) == ()
    assert find_warnings(evaluate((0.1, 1.0)), 5 * PIXELS - 2, constant(1.0)) == ()
    assert find_warnings(evaluate((0.01, 0.1)), moons(20, seed=0).inputs, constant(1.0)) == ()
    assert find_warnings(evaluate((1 / 255, 8 / 255)), digits().inputs[:20], constant(30.0)) == ()


CASES: dict[str, tuple[Evaluation, Tensor, float]] = {
    "gave the same answer, class 1, to all 20 samples: a classifier with one answer": (
        evaluate(predicted=[1] * 20), PIXELS, 1.0,
    ),
    "all of them have one label: evaluate samples of several classes": (
        evaluate(predicted=[1] * 20, labels=[1] * 20), PIXELS, 1.0,
    ),
    "A radius such as 36/255 is meant for pixels scaled to [0, 1], but the inputs range from 0 to 255": (
        evaluate(), 255 * PIXELS, 1.0,
    ),
    "but the inputs range from -2 to 2: scale the data": (evaluate(), 4 * PIXELS - 2, 1.0),
    "The largest radius, 0.14, is less than a thousandth of the range of an entry (the inputs range from 0 to 255)": (
        evaluate((0.1, 0.14)), 255 * PIXELS, 1.0,
    ),
    "The radius 9 is larger than the distance between any two of the inputs": (evaluate((0.1, 9.0)), PIXELS, 1.0),
    "All entries of all inputs are 3: there is nothing to classify": (evaluate(), 0 * PIXELS + 3, 1.0),
    "The constant is about 10^30, so the certified radii are next to nothing": (evaluate(), PIXELS, 1e30),
    "The constant is about 10^-12, so the scores hardly depend on the input": (evaluate(), PIXELS, 1e-12),
    "The constant is 0, so the scores hardly depend on the input": (evaluate(), PIXELS, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("said", CASES)
def test_an_absurd_result_gets_one_sentence(said: str) -> None:
    found, inputs, value = CASES[said]
    (sentence,) = find_warnings(found, inputs, constant(value))
    assert said in sentence
    assert sentence.endswith(".")
    assert ". " not in sentence


def test_no_two_inputs_are_farther_apart_than_it_says() -> None:
    (sentence,) = find_warnings(evaluate((0.1, 9.0)), PIXELS, constant(1.0))
    largest = float(torch.pdist(PIXELS.flatten(1).double()).max())
    # Four digits are said, so half a unit of the last one.
    assert largest <= float(sentence.split("at most ")[1].split(" ")[0]) + 5e-4


def test_one_sample_has_one_answer() -> None:
    found = Evaluation.of([SampleResult(0, 1, 1, 0.3)], (0.1,), 2.0, 0.95, 0.0)
    assert find_warnings(found, PIXELS[:1], constant(1.0)) == ()
