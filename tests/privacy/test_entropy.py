"""Noise and batches: their laws as measured, and who can repeat them."""

import math

import torch

from lipkit.privacy import Repeatable, SystemEntropy


def test_noise_has_its_variance():
    n, like = 1_000_000, torch.zeros(1_000_000)
    noise = SystemEntropy().normal(like, 3.0)
    assert noise.dtype == torch.float64
    # Six deviations of the mean and of the variance: false once in 1e8 runs.
    assert abs(noise.mean()) < 6 * 3 / math.sqrt(n)
    assert abs(noise.var() / 9 - 1) < 6 * math.sqrt(2 / n)


def test_batches_have_binomial_sizes_and_every_row_its_chance():
    sizes, counts = [], torch.zeros(2_000)
    for _ in range(2_000):
        batch = SystemEntropy().poisson(2_000, 0.1)
        sizes.append(float(len(batch)))
        counts[batch] += 1
    size = torch.tensor(sizes, dtype=torch.float64)
    assert abs(size.mean() - 200) < 6 * math.sqrt(180 / 2_000)
    assert abs(size.var() / 180 - 1) < 6 * math.sqrt(2 / 2_000)
    # Eight deviations, because there are 2,000 rows.
    assert (counts - 200).abs().max() < 8 * math.sqrt(180)


def test_the_global_seed_plays_no_part():
    like, drawn = torch.zeros(8), []
    for _ in range(2):
        torch.manual_seed(0)
        drawn.append(SystemEntropy().normal(like, 1.0))
    assert not torch.equal(*drawn)


def test_repeatable_draws_repeat_and_say_so():
    like = torch.zeros(4, 2)
    first, second = Repeatable(5), Repeatable(5)
    for _ in range(2):
        assert torch.equal(first.normal(like, 1.0), second.normal(like, 1.0))
    assert not torch.equal(first.normal(like, 1.0), first.normal(like, 1.0))
    assert not first.private
    assert str(first).startswith("not private")
    assert SystemEntropy().private
