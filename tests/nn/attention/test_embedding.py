"""Embeddings: how far substitutions move them, by brute force over all pairs of tokens."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.errors import ArgumentError


def filled(module: lnn.Embedding, fill: str) -> lnn.Embedding:
    with torch.no_grad():
        if fill == "huge":
            module.weight.mul_(torch.finfo(module.weight.dtype).max / 100)
        elif fill == "zero":
            module.weight.zero_()
        elif fill == "long":
            module.weight.normal_(0, 5)
        elif fill == "opposite":
            module.weight.copy_(10 * torch.ones_like(module.weight))
            module.weight[::2] *= -1
    return module


@pytest.mark.parametrize("fill", ["start", "long", "opposite", "huge", "zero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("max_norm", [0.5, 3.0])
def test_one_substitution_moves_the_output_by_at_most_the_gain(fill: str, dtype: torch.dtype, max_norm: float):
    torch.manual_seed(0)
    module = filled(lnn.Embedding(11, 7, max_norm=max_norm, dtype=dtype), fill)
    rows = module(torch.arange(11)).detach().double()
    moved = torch.cdist(rows, rows)
    assert float(moved.max()) <= 2 * max_norm <= module.gain
    if fill == "opposite":
        # Bfloat16 leaves room for its two digits.
        assert float(moved.max()) >= 2 * max_norm * (0.95 if dtype is torch.bfloat16 else 1 - 1e-5)
    plain = lnn.condense(module)
    assert type(plain) is nn.Embedding
    assert torch.equal(plain(torch.arange(11)), module(torch.arange(11)))


def test_several_substitutions_add_up_in_squares():
    torch.manual_seed(0)
    module = filled(lnn.Embedding(20, 4).double(), "opposite")
    text = torch.zeros(1, 9, dtype=torch.long)
    for changes in range(10):
        other = text.clone()
        other[0, :changes] = 1
        moved = float((module(text) - module(other)).norm().detach())
        assert moved <= module.gain * changes**0.5
        assert moved == pytest.approx(changes**0.5, abs=1e-6)


def test_mixtures_of_tokens_move_by_half_their_distance_in_l1():
    torch.manual_seed(0)
    module = filled(lnn.Embedding(6, 3).double(), "long")
    rows = module(torch.arange(6)).detach()
    p, q = torch.rand(2, 500, 6, dtype=torch.float64).softmax(-1)
    assert bool((((p - q) @ rows).norm(dim=1) <= 0.5 * (p - q).abs().sum(1)).all())


def test_a_model_of_constant_one_behind_it():
    torch.manual_seed(0)
    embedding = lnn.Embedding(30, 8)
    model = nn.Sequential(embedding, lnn.RNN(8, 8), nn.Flatten(), lnn.Linear(40, 3)).double()
    assert lnn.gain_of(model) == pytest.approx(1)
    text = torch.randint(30, (50, 5))
    other = torch.where(torch.rand(50, 5) < 0.3, torch.randint(30, (50, 5)), text)
    moved = (model(text) - model(other)).norm(dim=1)
    assert bool((moved <= (text != other).sum(1).double().sqrt()).all())


def test_short_vectors_stay_and_padding_gets_no_gradient():
    module = lnn.Embedding(5, 2, padding_idx=-1)
    assert module.padding_idx == 4
    assert float(module.weight[4].detach().norm()) == 0
    with torch.no_grad():
        module.weight[0] = torch.tensor([0.1, -0.2])
    # Three units of float32 make room for rounding.
    assert torch.allclose(module(torch.tensor([0])), torch.tensor([[0.1, -0.2]]), rtol=1e-5)
    (gradient,) = torch.autograd.grad(module(torch.tensor([[0, 4, 1]])).square().sum(), module.weight)
    assert gradient[0].any()
    assert not gradient[4].any()
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, 3), "got 0 and 3"),
        ((4, 3, 4), "padding_idx must be one of its 4 tokens, got 4"),
        ((4, 3, None, 0.0), "max_norm must be a positive number, got 0.0"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], said: str):
    with pytest.raises(ArgumentError, match=said):
        lnn.Embedding(*arguments)


def test_torch_of_the_same_name_changes_its_parameter_and_ours_does_not():
    weight = torch.full((3, 2), 5.0)
    functional.embedding(torch.tensor([1]), weight, max_norm=0.5)
    assert float(weight[1].norm()) < 1
    module = lnn.Embedding(3, 2)
    with torch.no_grad():
        module.weight.fill_(5.0)
    module(torch.tensor([1]))
    assert float(module.weight.detach().min()) == 5


def test_vectors_of_subnormal_numbers_are_not_longer_than_they_may_be():
    torch.manual_seed(0)
    module = lnn.Embedding(50, 1, max_norm=1e-7).half()
    with torch.no_grad():
        module.weight.normal_()
    rows = module(torch.arange(50)).detach().double()
    # 1e-7 lies between the first and the second number of float16, 6.0e-8 and 1.2e-7, and nearer to the second.
    assert float(rows.abs().max()) <= 1e-7
    assert float(torch.cdist(rows, rows).max()) <= module.gain
