"""Networks with folds are networks with sorts, in other coordinates and other units."""

import pytest
import torch
from torch import nn

from lipkit.nn import MaxMin
from lipkit.sdf.surfaces.folded_network import Folding, folded_network, sorting_network


def test_a_fold_is_a_sort_turned_by_45_degrees():
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    half = 0.5**0.5
    u, v = x.chunk(2, 1)
    s, d = Folding()(torch.cat([half * (u + v), half * (v - u)], 1)).chunk(2, 1)
    # A turn and back is rounded a few times at entries of size 4.
    assert torch.allclose(half * (s - d), torch.minimum(u, v), rtol=0, atol=1e-14)
    assert torch.allclose(half * (s + d), torch.maximum(u, v), rtol=0, atol=1e-14)


def test_a_new_network_is_orthonormal_and_near_the_identity_inside():
    model = folded_network(3, 16, 3, seed=0)
    weights = [layer.weight.detach() for layer in model if isinstance(layer, nn.Linear)]
    assert [tuple(w.shape) for w in weights] == [(16, 3), (16, 16), (16, 16), (1, 16)]
    for w in weights:
        gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        assert torch.allclose(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)
    # Noise of norm about .2, see `near_identity`.
    assert all(float(torch.linalg.matrix_norm(w - torch.eye(16), 2)) < 0.5 for w in weights[1:3])


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_the_network_with_sorts_is_the_same_function_in_the_units_of_the_surface(unit: float):
    center = unit * torch.tensor([0.5, -2.0, 7.0], dtype=torch.float64)
    model = folded_network(3, 16, 4, seed=1)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.bias)
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        before = model.double()(x)
        found = sorting_network(model, center, unit)(unit * x + center)
    # The weights were orthonormal in float32, which moves values of size 3 by up to about 1e-6.
    assert torch.allclose(found, unit * before, rtol=0, atol=1e-5 * unit)
    assert found.dtype == torch.float64


def test_no_fold_is_left():
    model = sorting_network(folded_network(2, 4, 2, seed=0), torch.zeros(2, dtype=torch.float64), 1.0)
    assert [type(layer) for layer in model] == [nn.Linear, MaxMin, nn.Linear, MaxMin, nn.Linear]
