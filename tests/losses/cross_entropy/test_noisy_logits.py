"""Losses of noisy logits: their inequalities, their special cases, and what they refuse."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from lipkit.errors import ArgumentError, ShapeError
from lipkit.losses import Consistency, Loss, NoisyCrossEntropy, SmoothedCrossEntropy
from support.unchecked import unchecked

LOSSES: list[Loss] = [NoisyCrossEntropy(), SmoothedCrossEntropy(), Consistency()]


def drawn(seed: int, draws: int, classes: int, scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(draws, 6, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (6,), generator=generator)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 7), st.floats(0.01, 30.0))
def test_smoothed_is_at_most_noisy_is_at_most_consistency(seed: int, draws: int, classes: int, scale: float):
    logits, labels = drawn(seed, draws, classes, scale)
    smoothed, noisy, consistent = (
        loss(logits, labels)
        for loss in (
            SmoothedCrossEntropy(reduction="none"),
            NoisyCrossEntropy(reduction="none"),
            Consistency(3.0, 0.5, reduction="none"),
        )
    )
    # float64 sums of a few logarithms of size 100.
    slack = 1e-12 * (1 + noisy)
    assert bool((smoothed <= noisy + slack).all())
    assert bool((noisy <= consistent + slack).all())


@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.01, 5.0))
def test_smoothed_below_log_2_means_more_than_half_of_the_mean_probability(seed: int, draws: int, scale: float):
    logits, labels = drawn(seed, draws, 4, scale)
    share = logits.softmax(2).mean(0).gather(1, labels[:, None])[:, 0]
    found = SmoothedCrossEntropy(reduction="none")(logits, labels)
    certain = (share - 0.5).abs() > 1e-12
    assert torch.equal((found < math.log(2))[certain], (share > 0.5)[certain])


def test_one_copy_is_the_cross_entropy():
    logits, labels = drawn(0, 1, 5, 2.0)
    plain = functional.cross_entropy(logits[0], labels)
    for loss in (NoisyCrossEntropy(), SmoothedCrossEntropy(), Consistency(7.0, 0.0)):
        torch.testing.assert_close(loss(logits, labels), plain)


def test_copies_that_agree_have_no_divergence():
    logits, labels = drawn(1, 1, 5, 2.0)
    # Adding a number to all logits of a copy changes no probability.
    shifted = logits + torch.arange(3.0)[:, None, None]
    torch.testing.assert_close(Consistency(1e3, 0.0)(shifted, labels), functional.cross_entropy(logits[0], labels))


@unchecked()
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_wrong_shapes_and_labels_get_one_sentence(loss: Loss):
    labels = torch.tensor([0, 1])
    for shape in ((2, 3), (3,), (0, 2, 3), (1, 2, 3, 4)):
        with pytest.raises(ShapeError, match=r"shape \(draws >= 1, batch, classes\), got"):
            loss(torch.zeros(shape), labels)
    with pytest.raises(ShapeError, match="one index for each sample"):
        loss(torch.zeros(2, 3, 4), labels)
    with pytest.raises(ArgumentError, match=r"Labels lie in 0\.\.3, got 0\.\.4"):
        loss(torch.zeros(2, 2, 4), torch.tensor([0, 4]))
    with pytest.raises(ArgumentError, match="floating point"):
        loss(torch.zeros(2, 2, 4).long(), labels)


def test_weights_below_zero_are_refused():
    with pytest.raises(ArgumentError, match=r"weight of Consistency lies in \[0, inf\), got -1"):
        Consistency(-1.0)
    with pytest.raises(ArgumentError, match=r"entropy of Consistency lies in \[0, inf\), got nan"):
        Consistency(1.0, math.nan)
