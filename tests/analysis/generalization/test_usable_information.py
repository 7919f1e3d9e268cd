"""V-information: laws on tables, where everything is known, and a class of models that cannot use what is there."""

import math

import pytest
import torch
from torch import nn

from lipkit.analysis.generalization import usable_information
from lipkit.data import Examples
from lipkit.errors import ArgumentError, NonFiniteError

# Sixteenths of a joint law of four inputs and two labels.
JOINT = torch.tensor([[4, 0], [3, 1], [1, 3], [2, 2]])


def table() -> Examples:
    """Sixteen samples with exactly these shares, inputs as unit vectors."""
    pairs = [(x, y) for x in range(4) for y in range(2) for _ in range(int(JOINT[x, y]))]
    inputs = torch.eye(4, dtype=torch.float64)[[x for x, _ in pairs]]
    return Examples(inputs, torch.tensor([y for _, y in pairs]), ("a", "b"))


def knows(law: torch.Tensor) -> nn.Module:
    """The model whose logits are the logarithms of a conditional law; what never happens has a very small one."""
    model = nn.Linear(4, 2, bias=False).double()
    model.weight.data = (law / law.sum(1, keepdim=True)).clamp(min=1e-300).log().mT
    return model


def test_the_true_law_has_the_mutual_information():
    prior = JOINT.sum(0).double() / 16
    found = usable_information(knows(JOINT.double()), table(), prior, batch=3)
    joint = JOINT.double() / 16
    terms = torch.special.xlogy(joint, joint / (joint.sum(1, keepdim=True) * prior))
    assert found.value == pytest.approx(float(terms.sum()), rel=1e-14)
    # The sample (x, y) = (1, 1), with Q = 1/4 and P = 6/16: harder than a guess without its input.
    assert float(found.each[7]) == pytest.approx(math.log(4 / 6), rel=1e-14)
    assert found.standard_error == pytest.approx(float(found.each.std()) / 4)


def test_other_models_know_less_and_other_priors_add_their_divergence():
    prior = JOINT.sum(0).double() / 16
    best = usable_information(knows(JOINT.double()), table(), prior).value
    assert usable_information(knows(JOINT.double() + 1), table(), prior).value < best
    assert usable_information(knows(prior.expand(4, 2)), table(), prior).value == pytest.approx(0, abs=1e-15)
    even = usable_information(knows(JOINT.double()), table(), torch.tensor([0.5, 0.5])).value
    divergence = float((prior * (2 * prior).log()).sum())
    assert even == pytest.approx(best + divergence, rel=1e-13)


def test_a_computation_can_raise_it():
    """The parity of two bits: a linear model can use nothing of the bits, and all of their product."""
    bits = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    labels, half = torch.tensor([1, 0, 0, 1]), torch.tensor([0.5, 0.5])
    linear = nn.Linear(2, 2).double()
    for p in linear.parameters():
        p.data.zero_()
    nn.functional.cross_entropy(linear(bits), labels).backward()
    # The cross-entropy is convex in a linear model, so the best one is where its gradient is zero.
    assert all(p.grad is not None and not bool(p.grad.any()) for p in linear.parameters())
    assert usable_information(linear, Examples(bits, labels, ("0", "1")), half).value == pytest.approx(0, abs=1e-15)
    product = Examples(bits.prod(1, keepdim=True), labels, ("0", "1"))
    sure = nn.Linear(1, 2, bias=False).double()
    sure.weight.data = torch.tensor([[-20.0], [20.0]], dtype=torch.float64)
    assert usable_information(sure, product, half).value == pytest.approx(math.log(2), rel=1e-12)


def test_the_model_is_evaluated_and_bad_input_refused():
    data, half = table(), torch.tensor([0.5, 0.5])
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 2).double()).train()
    first, second = (usable_information(model, data, half).each for _ in range(2))
    assert torch.equal(first, second)
    assert model.training
    with pytest.raises(ArgumentError, match="two samples"):
        usable_information(model, data.at([0]), half)
    with pytest.raises(ArgumentError, match="distribution"):
        usable_information(model, data, torch.tensor([0.5, 0.6]))
    with pytest.raises(ArgumentError, match="no probability"):
        usable_information(model, data, torch.tensor([1.0, 0.0]))
    with pytest.raises(NonFiniteError, match="log-likelihoods"):
        usable_information(knows(torch.full((4, 2), math.nan, dtype=torch.float64)), data, half)
