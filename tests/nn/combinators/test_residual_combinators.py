"""Weighted, norm and concatenating residuals, learnt scales: constants by dense Jacobians, where they are attained."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.nn.core.known_constants import Stated
from support.jacobians import jacobian, norm_at, steepest
from support.proven import proven

# A dense decomposition in float64 is off by some units of 2^-53.
ROUNDING = 1 + 1e-13


def branch(features: int = 4) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(lnn.Linear(features, features), lnn.MaxMin(), lnn.Linear(features, features))


MODULES: dict[str, Callable[[], Stated]] = {
    "weighted": lambda: lnn.WeightedResidual(branch(), 4, start=-0.3),
    "weighted, one for all": lambda: lnn.WeightedResidual(nn.Sequential(branch(), lnn.Scale(2.0)), most=3.0, start=2.0),
    "norm": lambda: lnn.L2NormResidual(branch()),
    "norm of a large branch": lambda: lnn.L2NormResidual(nn.Sequential(branch(), lnn.Scale(3.0)), eps=1e-3),
    "halves": lambda: lnn.ConcatResidual(branch(2)),
    "halves with a large branch": lambda: lnn.ConcatResidual(lnn.Scale(1.5)),
    "scale": lambda: lnn.LearnedScale(-1.2),
}
RAW = {
    "as started": lambda raw: raw,
    "normal": torch.randn_like,
    "huge": lambda raw: 1e30 * torch.ones_like(raw),
    "denormal": lambda raw: 1e-40 * torch.ones_like(raw),
    "at the end": lambda raw: torch.full_like(raw, -math.pi / 2),
}


@pytest.mark.parametrize("numbers", RAW)
@pytest.mark.parametrize("name", MODULES)
def test_no_jacobian_exceeds_the_declared_constant(name: str, numbers: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()
    with torch.no_grad():
        for key, parameter in module.named_parameters():
            if key == "raw":
                parameter.copy_(RAW[numbers](parameter))
    module = module.double()
    declared = float(module.declared_lipschitz((4,)).value.detach())
    assert steepest(module, (1, 4)) <= declared * ROUNDING
    assert declared <= module.gain * ROUNDING


@pytest.mark.parametrize(
    ("module", "constant"),
    [
        (lnn.WeightedResidual(nn.Identity(), 4, start=0.2), 1.2),
        # With a negative weight the branch -x makes it larger still.
        (lnn.WeightedResidual(lnn.Scale(-1.0), 4, start=-0.2), 1.2),
        (lnn.WeightedResidual(lnn.Scale(5.0), start=0.2), 2.0),
        (lnn.ConcatResidual(nn.Identity()), 1.0),
        (lnn.ConcatResidual(lnn.Scale(2.0)), 2.0),
        (lnn.LearnedScale(-0.7), 0.7),
    ],
    ids=lambda one: str(one)[:25],
)
def test_constants_are_attained(module: Stated, constant: float) -> None:
    x = torch.randn(1, 4, dtype=torch.float64)
    # Numbers are made in float32, and scales rounded down by 2^-22.
    assert norm_at(module.double(), x) == pytest.approx(constant, rel=1e-6)
    assert float(module.declared_lipschitz((4,)).value.detach()) == pytest.approx(constant, rel=1e-6)


def test_the_printed_bound_of_the_weighted_residual_is_exceeded() -> None:
    """x + a g(x): with a = -1/2 and g = -x the slope is 1.5, and 1 + max a is 0.5; with a = 0.2 and g = 5 x it is 2."""

    def bent(a: float, slope: float) -> float:
        module = lnn.WeightedResidual(lnn.Scale(slope), start=a).double()
        found = norm_at(module, torch.ones(1, 1, dtype=torch.float64))
        assert found <= float(module.declared_lipschitz((1,)).value.detach())
        return found

    assert bent(-0.5, -1.0) == pytest.approx(1.5, rel=1e-6)
    assert bent(-0.5, -1.0) > 1 + -0.5
    assert bent(0.2, 5.0) == pytest.approx(2.0, rel=1e-6)
    assert bent(0.2, 5.0) > 1 + 0.2


def test_a_linear_weighted_residual_has_the_norm_of_its_matrix() -> None:
    torch.manual_seed(1)
    layer = lnn.WeightedResidual(lnn.Linear(4, 4, bias=False), 4).double()
    with torch.no_grad():
        layer.raw.normal_()
    matrix = layer.branch.weight
    assert isinstance(matrix, Tensor)
    expected = torch.eye(4, dtype=torch.float64) + layer.weights.detach()[:, None] * matrix.detach()
    torch.testing.assert_close(jacobian(layer, torch.randn(1, 4, dtype=torch.float64)), expected, rtol=1e-6, atol=1e-7)
    bound = float(layer.declared_lipschitz((4,)).value.detach())
    assert float(torch.linalg.matrix_norm(expected, 2)) <= bound <= 1 + float(layer.weights.detach().abs().max()) + 1e-9


def test_regularisers_reach_the_weights() -> None:
    layer = lnn.WeightedResidual(branch(), 4)
    layer.declared_lipschitz((4,)).value.backward()
    assert layer.raw.grad is not None
    assert float(layer.raw.grad.abs().max()) > 0


def test_norms_of_pairs_entry_by_entry() -> None:
    layer = lnn.L2NormResidual(lnn.Scale(1.0), eps=0.25).double()
    x = torch.tensor([[3.0, -4.0, 0.0]], dtype=torch.float64)
    # Both parts are x, up to the slack of the scale; (x^2 + x^2)/2 + eps under the root.
    torch.testing.assert_close(layer(x), (x.square() + 0.25).sqrt(), rtol=1e-6, atol=0)
    at_zero = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(lnn.L2NormResidual(nn.Identity())(at_zero).sum(), at_zero)
    assert torch.equal(gradient, torch.zeros(2, 3))
    # Squares would leave the range of float16.
    large = lnn.L2NormResidual(nn.Identity())(torch.full((1, 2), 1000.0, dtype=torch.float16))
    assert float(large.max()) == pytest.approx(1000, rel=2e-3)


def test_halves_keep_norms_and_learn() -> None:
    layer = lnn.ConcatResidual(branch(2)).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(layer(x)[:, :2], x[:, :2])
    values = torch.linalg.svdvals(jacobian(layer, x[:1]))
    # Orthogonal layers and a sort: every singular value is 1.
    torch.testing.assert_close(values, torch.ones(4, dtype=torch.float64), rtol=1e-9, atol=0)


def test_a_learnt_scale_behind_a_unit_layer_sets_the_norm() -> None:
    """(c/||W||) W: the norm is |c|, up to the certified norm of `Spectral`, which is at most 2 % too large here."""
    torch.manual_seed(2)
    model = nn.Sequential(lnn.Linear(5, 4, bias=False, method=lnn.Spectral()), lnn.LearnedScale(1.6)).double()
    found = norm_at(model, torch.randn(1, 5, dtype=torch.float64))
    assert 0.98 * 1.6 < found <= 1.6
    assert proven(model, torch.randn(1, 5, dtype=torch.float64)) >= found


@pytest.mark.parametrize("name", MODULES)
def test_captures_have_the_declared_constant(name: str) -> None:
    module = MODULES[name]()
    found = proven(module, torch.randn(1, 4))
    declared = float(module.declared_lipschitz((4,)).value.detach())
    assert found == pytest.approx(declared, rel=1e-12)


@pytest.mark.parametrize("build", [lnn.WeightedResidual, lnn.L2NormResidual, lnn.ConcatResidual])
def test_parts_without_a_constant_are_refused(build: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(UnsupportedError, match="not known"):
        build(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: lnn.WeightedResidual(nn.Identity(), start=2.0),
        lambda: lnn.WeightedResidual(nn.Identity(), most=math.inf),
        lambda: lnn.WeightedResidual(nn.Identity(), channels=0),
        lambda: lnn.L2NormResidual(nn.Identity(), eps=0.0),
        lambda: lnn.LearnedScale(3.0),
        lambda: lnn.LearnedScale(most=-1.0),
    ],
)
def test_arguments_outside_their_domain_are_refused(build: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        build()


def test_inputs_of_other_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match="even number"):
        lnn.ConcatResidual(nn.Identity())(torch.ones(1, 3))
    with pytest.raises(ShapeError, match="repeating"):
        lnn.WeightedResidual(lnn.Linear(4, 1))(torch.ones(2, 4))
    with pytest.raises(ShapeError, match="repeating"):
        lnn.L2NormResidual(lnn.Linear(4, 1))(torch.ones(2, 4))
    with pytest.raises(ShapeError):
        lnn.WeightedResidual(nn.Identity(), 3)(torch.ones(2, 4))
