"""The smoothed classifier with gradients, against integrals, differences and its own losses."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn
from torch.nn import functional

from lipkit.certify.attacks import PGD
from lipkit.certify.smoothing import Noisy
from lipkit.errors import ArgumentError
from lipkit.losses import SmoothedCrossEntropy


def small_model(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, classes)).double()


def images(count: int = 5) -> torch.Tensor:
    return torch.rand(count, 2, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_the_mean_probability_nears_its_integral():
    # Logits (3 x, 0): the probability is a sigmoid, and the noise one-dimensional.
    noisy = Noisy(lambda x: torch.cat([3 * x, 0 * x], 1), 0.5, 20_000, seed=3)
    for x in (-0.4, 0.1, 0.9):
        found = float(noisy(torch.tensor([[x]], dtype=torch.float64)).exp()[0, 0])
        expected, _ = quad(
            lambda e, x=x: math.exp(-e * e / 2) / math.sqrt(2 * math.pi) / (1 + math.exp(-3 * (x + 0.5 * e))), -10, 10
        )
        # The standard error is at most 0.5 / sqrt(20,000) = 0.0035; four of them.
        assert abs(found - expected) < 0.015


def test_without_noise_it_is_the_model():
    model, x = small_model(), images()
    for seed in (None, 0):
        torch.testing.assert_close(Noisy(model, 0.0, 4, seed=seed)(x), model(x).log_softmax(1))


def test_its_cross_entropy_is_the_smoothed_one_of_its_copies():
    noisy, x = Noisy(small_model(), 0.3, 6, seed=2), images()
    labels = torch.tensor([0, 1, 2, 1, 0])
    assert noisy.copies(x).shape == (6, 5, 3)
    torch.testing.assert_close(
        functional.cross_entropy(noisy(x), labels), SmoothedCrossEntropy()(noisy.copies(x), labels)
    )


def test_with_a_seed_an_input_has_the_same_value_in_every_batch():
    noisy, x = Noisy(small_model(), 0.3, 4, seed=2), images()
    whole = noisy(x)
    assert torch.equal(noisy(x), whole)
    # Batches of other sizes may be multiplied in another order.
    torch.testing.assert_close(noisy(x[3:4]), whole[3:4], rtol=1e-13, atol=1e-13)
    assert not torch.allclose(Noisy(small_model(), 0.3, 4, seed=3)(x), whole)


def test_without_a_seed_every_call_and_every_input_has_noise_of_its_own():
    noisy, x = Noisy(small_model(), 0.3, 2), images(1).repeat(4, 1, 1, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = noisy(x), noisy(x)
        assert len(first.unique(dim=0)) == 4
        assert not torch.equal(first, second)
        torch.manual_seed(0)
        assert torch.equal(noisy(x), first)


def test_gradients_agree_with_differences():
    noisy, x = Noisy(small_model(), 0.3, 3, seed=4), images(2).requires_grad_()
    assert torch.autograd.gradcheck(noisy, (x,))


def test_half_precision_is_averaged_in_float32():
    noisy = Noisy(small_model().to(torch.bfloat16), 0.3, 3, seed=4)
    assert noisy(images().to(torch.bfloat16)).dtype == torch.float32


def test_an_attack_on_it_lowers_the_mean_probability_of_fresh_noise_more_than_one_on_the_model():
    # A model with much detail below the noise: its own gradient says little of the smoothed function.
    def model(x: torch.Tensor) -> torch.Tensor:
        slow, fast = x.sum(1, keepdim=True), torch.sin(25 * x).sum(1, keepdim=True)
        return torch.cat([slow + fast, torch.zeros_like(slow)], 1)

    x = torch.rand(16, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.zeros(16, dtype=torch.long)
    attack = PGD(eps=1.0, steps=20)
    noisy, fresh = Noisy(model, 0.5, 500, seed=1), Noisy(model, 0.5, 2000, seed=2)
    smooth, plain = attack(noisy, x, labels), attack(model, x, labels)
    assert float(torch.linalg.vector_norm(smooth - x, dim=1).max()) <= 1.0
    before, after, other = (float(fresh(at)[:, 0].exp().mean()) for at in (x, smooth, plain))
    # Measured: 0.93, 0.73 and 0.91.
    assert after < other - 0.1
    assert after < before - 0.1


def test_what_makes_no_sense_is_refused():
    for sigma in (-0.1, np.inf, np.nan):
        with pytest.raises(ArgumentError, match="sigma is a finite standard deviation >= 0"):
            Noisy(small_model(), sigma)
    with pytest.raises(ArgumentError, match="draws is a number of noisy copies >= 1, got 0"):
        Noisy(small_model(), 0.1, 0)
    with pytest.raises(ArgumentError, match="seed must lie in"):
        Noisy(small_model(), 0.1, 1, seed=-1)
