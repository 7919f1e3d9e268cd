"""Projected gradient steps, alone and together with penalties."""

import copy

import pytest
import torch
from torch import nn

from lipkit.errors import NonFiniteError
from lipkit.optim import Projected
from lipkit.regularizers import Orthogonality, layers_of
from support.orthonormal import parameter, polar, residual


@pytest.mark.parametrize("lr", [1e-3, 0.3, 100.0])
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (6, 4, 1, 1)])
def test_a_step_is_the_nearest_matrix_to_the_step_of_the_base(shape: tuple[int, ...], lr: float) -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(parameter(shape[0], shape[1]).detach().reshape(shape))
    weight.grad = torch.randn_like(weight)
    moved = (weight.detach() - lr * weight.grad).flatten(1)
    values = torch.linalg.svdvals(moved)
    Projected(torch.optim.SGD([weight], lr)).step()
    # The projection is as sharp as the smallest singular value is known.
    assert float((weight.detach().flatten(1) - polar(moved)).norm()) < 1e-13 * float(values[0] / values[-1]) + 1e-13
    assert residual(weight) < 1e-13


def test_singular_matrices_have_a_nearest_one_too() -> None:
    weight = parameter(4, 4)
    weight.grad = weight.detach().clone()
    Projected(torch.optim.SGD([weight], 1.0)).step()
    assert residual(weight) < 1e-13


def test_the_base_is_free_between_two_projections() -> None:
    torch.manual_seed(0)
    weight, twin = parameter(6, 4), parameter(6, 4)
    optimizer, base = Projected(torch.optim.Adam([weight], 0.05), every=3), torch.optim.Adam([twin], 0.05)
    for step in range(1, 8):
        weight.grad = torch.randn_like(weight)
        twin.grad = weight.grad.clone()
        optimizer.step()
        base.step()
        if step % 3 == 0:
            assert residual(weight) < 1e-13
            with torch.no_grad():
                twin.copy_(polar(twin))
        else:
            assert residual(weight) > 1e-3
        assert torch.allclose(weight, twin, atol=1e-12)
    again = nn.Parameter(weight.detach().clone())
    other = Projected(torch.optim.Adam([again], 0.05), every=9)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    # Seven steps were taken: the second one from here is a ninth.
    for _ in range(2):
        again.grad = torch.randn_like(again)
        other.step()
    assert residual(again) < 1e-13


def test_penalties_hold_the_weight_near_between_projections() -> None:
    """A penalty and a projection now and then, mixed: the weights drift less, and both end in the same solution."""
    target = polar(torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    drift = {}
    for strength in (0.0, 1.0):
        layer, penalty = nn.Linear(5, 8, bias=False).double(), Orthogonality()
        layer.weight = weight = parameter(8, 5)
        layers = layers_of(layer, torch.zeros(1, 5, dtype=torch.float64))
        optimizer, farthest = Projected(torch.optim.SGD([weight], 0.02), every=10), 0.0
        for _ in range(400):
            optimizer.zero_grad()
            loss = -(weight * target).sum() + strength * penalty(layers)
            loss.backward()
            optimizer.step()
            farthest = max(farthest, residual(weight))
        drift[strength] = farthest
        assert residual(weight) < 1e-13
        assert float((weight.detach() - target).norm()) < 1e-2
    assert drift[1.0] < drift[0.0] / 2


def test_a_base_that_spoiled_a_weight_is_named() -> None:
    weight = parameter(3, 3)
    optimizer = Projected(torch.optim.SGD([weight], 1.0))
    weight.grad = torch.full_like(weight, torch.inf)
    with pytest.raises(NonFiniteError, match="learning rate"):
        optimizer.step()
