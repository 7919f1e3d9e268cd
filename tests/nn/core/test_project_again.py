"""Projections that are done already: a second call changes nothing, in every type of numbers."""

import math

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import L2
from lipkit.errors import NonFiniteError
from lipkit.nn import WeightMethod, convex
from lipkit.nn.core.geometry import geometry_of
from support.layers.examples import EVERY, covers
from support.naming import naming

# Layers of torch.nn cannot take a kernel of another size.
PLAIN = [method for method in EVERY if not isinstance(method, lnn.SOC)]
# Squares of entries forget the signs of the matrix they come from, so no projection finds it again.
REPEATABLE = [method for method in PLAIN if not isinstance(method, convex.Orthostochastic)]
TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def _plain(method: WeightMethod, dtype: torch.dtype) -> tuple[nn.Module, ...]:
    torch.manual_seed(0)
    matrices = (nn.Linear(12, 12), nn.Linear(20, 7), nn.Conv1d(6, 4, 1)) if covers(method, kernel=False) else ()
    kernels = (nn.Conv2d(3, 4, 3), nn.ConvTranspose1d(4, 6, 4, stride=2)) if covers(method, kernel=True) else ()
    # LinearResidual is for layers that keep the number of channels.
    square = (nn.Linear(12, 12), nn.Conv1d(4, 4, 3, padding=1))
    return tuple(m.to(dtype) for m in (square if isinstance(method, lnn.LinearResidual) else (*matrices, *kernels)))


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _dense_norm(module: nn.Module, method: WeightMethod) -> float:
    """The norm of the layer in the norms of the method, from the columns of its matrix on a small image."""
    geometry = geometry_of(module)
    channels = geometry.groups * (geometry.rows if geometry.transposed else geometry.cols)
    shape = (channels, *(5 for _ in geometry.taps))
    size = math.prod(shape)
    plain = nn.Module.double(module)
    with torch.no_grad():
        found = plain(torch.eye(size, dtype=torch.float64).reshape(size, *shape)) - plain(
            torch.zeros(1, *shape, dtype=torch.float64)
        )
    matrix = found.flatten(1).mT
    metric = method.metric(geometry)
    if metric == L2:
        return float(torch.linalg.matrix_norm(matrix, 2))
    if metric.p_in == metric.p_out:
        return float(torch.linalg.matrix_norm(matrix, metric.p_in))
    return float(torch.linalg.vector_norm(matrix, dim=1).max())


@pytest.mark.parametrize("method", PLAIN, ids=str)
def test_plain_weights_are_projected_once_and_soundly(method: WeightMethod) -> None:
    for module in (module for dtype in TYPES for module in _plain(method, dtype)):
        with torch.no_grad():
            module.get_parameter("weight").mul_(3)
        lnn.project(module, linear=method, conv=method)
        once = _weight(module).clone()
        lnn.project(module, linear=method, conv=method)
        with naming(module, _weight(module).dtype):
            assert torch.equal(_weight(module), once) or method not in REPEATABLE
            # The decomposition of a matrix with 60 rows is off by some units of 2^-53.
            assert _dense_norm(module, method) <= 1 + 1e-13


@pytest.mark.parametrize("method", REPEATABLE, ids=str)
def test_free_numbers_are_moved_once(method: WeightMethod) -> None:
    for module in (module for dtype in TYPES for module in _plain(method, dtype)):
        lnn.parametrize(module, "weight", method)
        raw = module.get_parameter("parametrizations.weight.original")
        with torch.no_grad():
            raw.add_(0.1 * torch.randn_like(raw))
        lnn.project(module)
        once = raw.detach().clone()
        lnn.project(module)
        with naming(module, _weight(module).dtype):
            assert torch.equal(raw, once)


@pytest.mark.parametrize("method", [lnn.SingularClip(), lnn.LpBall(), lnn.Clip()], ids=str)
def test_many_calls_do_not_wear_a_weight_down(method: WeightMethod) -> None:
    torch.manual_seed(0)
    layer = lnn.Linear(16, 16, method=method).bfloat16()
    before = torch.linalg.matrix_norm(layer.weight.detach().double(), 2)
    for _ in range(50):
        lnn.project(layer)
    after = torch.linalg.matrix_norm(layer.weight.detach().double(), 2)
    # One rounding to bfloat16 is all that may happen to the free numbers.
    torch.testing.assert_close(after, before, rtol=2.0**-7, atol=0)


def test_a_weight_that_the_method_can_make_is_kept() -> None:
    """Its transform is another orthogonal matrix, far away."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        free = 0.3 * torch.randn(8, 8)
        layer.weight.copy_(torch.linalg.matrix_exp(free - free.mT))
    before = layer.weight.detach().clone()
    for method in (lnn.Cayley(), lnn.Exponential()):
        lnn.project(layer, linear=method)
        torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=1e-5)


def test_bfloat16_weights_chosen_to_round_up_have_norm_at_most_one() -> None:
    """A Hadamard matrix whose entries all round up: as the margin of 2^-8 alone leaves it, its norm is above one."""
    side = torch.ones(4, 4, dtype=torch.float64) - 2 * torch.eye(4, dtype=torch.float64)
    hadamard = torch.kron(side, torch.kron(side, torch.kron(side, side)))
    middle = (1 - 3 * 2.0**-9) / 16
    layer = nn.Linear(256, 256).bfloat16()
    for method in (lnn.SingularClip(), lnn.Polar()):
        with torch.no_grad():
            layer.weight.copy_(hadamard * (middle + hadamard * 2e-2 * middle * 2**-9) / (1 - 2.0**-8))
        lnn.project(layer, linear=method)
        norm = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
        assert 0.9 < norm <= 1
        once = layer.weight.detach().clone()
        assert torch.equal(_weight(lnn.project(layer, linear=method)), once)


def test_projection_under_autocast_keeps_float32() -> None:
    torch.manual_seed(0)
    layer, twin = nn.Linear(9, 9), nn.Linear(9, 9)
    twin.load_state_dict(layer.state_dict())
    lnn.project(layer, linear=lnn.Bjorck())
    with torch.autocast("cpu", torch.bfloat16):
        lnn.project(twin, linear=lnn.Bjorck())
    assert torch.equal(layer.weight, twin.weight)


def test_weights_that_are_not_finite_are_refused_before_any_change() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    before = first.weight.detach().clone()
    with torch.no_grad():
        second.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"shape \(3, 3\).*repair"):
        lnn.project(nn.Sequential(first, second), linear=lnn.Bjorck())
    assert torch.equal(first.weight, before)
