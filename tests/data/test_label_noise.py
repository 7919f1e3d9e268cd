"""Replaced labels are as many as was asked for, and uniform."""

import pytest
import torch

from lipkit import data
from lipkit.errors import ArgumentError


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_the_share_that_changes(share: float):
    labels = torch.zeros(20_000, dtype=torch.long)
    noisy = data.with_uniform_noise(labels, 5, share, seed=1)
    # Five standard deviations of at most (1/4 / 20,000)^(1/2).
    assert abs(float((noisy != 0).double().mean()) - share * 0.8) < 0.018
    assert not bool(labels.any())
    assert torch.equal(noisy, data.with_uniform_noise(labels, 5, share, seed=1))
    counts = noisy.bincount(minlength=5)[1:].double() / len(labels)
    assert float((counts - share / 5).abs().max()) < 0.018


@pytest.mark.parametrize(("share", "classes"), [(1.1, 5), (-0.1, 5), (float("nan"), 5), (0.5, 1), (0.5, 3)])
def test_bad_input_is_refused(share: float, classes: int):
    with pytest.raises(ArgumentError):
        data.with_uniform_noise(torch.tensor([0, 3]), classes, share, seed=0)
