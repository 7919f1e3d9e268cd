"""Networks as fields: the constant, the copy, the shape of points, against the model itself and decimal arithmetic."""

import copy
import json

import pytest
import torch
from torch import nn

from lipkit import lipschitz, sdf
from lipkit import nn as lnn
from lipkit.bound import Kind
from lipkit.bounds import DAG, LipLT
from lipkit.errors import ArgumentError, RecordError, ShapeError
from lipkit.sdf._base import constant_of
from lipkit.sdf.one_class import orthogonal_mlp
from support.unchecked import unchecked


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).double()


X = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_it_computes_the_model() -> None:
    net = model()
    field = sdf.Network(net, X[:1])
    found = field.measure(X)
    with torch.no_grad():
        truth = net(X)[:, 0]
    # The model rounds as the field does, so both are within the error.
    assert bool(((found.value - truth).abs() <= 2 * found.error).all())
    assert float(found.error.max()) < 1e-12
    assert field.dim == 3


def test_its_constant_is_that_of_the_model() -> None:
    net = model()
    proven = lipschitz(net, X[:1], method=DAG())
    field = sdf.Network(net, X[:1])
    assert field.bound.kind is Kind.UPPER
    # One method, one network.
    assert constant_of(field) == pytest.approx(float(proven.value.detach()), rel=1e-12)
    slope = field.gradient(X).norm(dim=1).max()
    assert float(slope) <= constant_of(field)


def test_training_goes_on_without_it() -> None:
    net = model()
    field = sdf.Network(net, X[:1])
    before = field(X)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(2)
    assert torch.equal(field(X), before)
    assert all(weight.requires_grad for weight in net.parameters())


def test_points_are_flat_and_get_the_shape_of_the_example() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)).double()
    field = sdf.Network(net, torch.zeros(1, 1, 3, 3, dtype=torch.float64))
    x = torch.randn(4, 9, dtype=torch.float64)
    with torch.no_grad():
        truth = net(x.view(4, 1, 3, 3))[:, 0]
    assert torch.allclose(field(x), truth, rtol=1e-12, atol=1e-12)
    assert field.dim == 9


def test_weights_that_layers_compute_and_outputs_without_axis() -> None:
    class Squeezed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(lnn.Linear(3, 8), lnn.MaxMin(), lnn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)[:, 0]

    torch.manual_seed(0)
    net = Squeezed()
    field = sdf.Network(net, torch.zeros(1, 3))
    with torch.no_grad():
        truth = net(X.float())
    # The model computes in float32, the field in float64.
    assert torch.allclose(field(X), truth.double(), atol=1e-5)
    # Layers of norm one: the product proves 1, up to float32.
    assert constant_of(field) == pytest.approx(1, abs=1e-4)


def test_another_method_may_prove_the_constant() -> None:
    proven = float(lipschitz(model(), X[:1], method=LipLT()).value.detach())
    assert constant_of(sdf.Network(model(), X[:1], LipLT())) == pytest.approx(proven, rel=1e-12)


def test_a_field_has_one_value_a_point() -> None:
    with pytest.raises(ShapeError, match="one value"):
        sdf.Network(nn.Linear(3, 2).double(), X[:1])
    with pytest.raises(ShapeError, match="batch axis"):
        sdf.Network(nn.Linear(3, 1).double(), X[0, :1].clone()[:0])


def test_a_state_gives_the_same_values_to_the_bit() -> None:
    net = orthogonal_mlp(3, (8, 6), torch.Generator().manual_seed(2)).double()
    field = sdf.Network(net, X[:1])
    before = torch.random.get_rng_state()
    again = sdf.Network.from_state(*field.to_state())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(again(X), field(X))
    assert torch.equal(again.measure(X).error, field.measure(X).error)
    assert torch.equal(again.gradient(X), field.gradient(X))
    assert constant_of(again) == constant_of(field)


def test_a_state_is_a_copy_and_survives_text() -> None:
    field = sdf.Network(orthogonal_mlp(3, (4,), torch.Generator().manual_seed(2)), X[:1].float())
    tensors, about = field.to_state()
    again = sdf.Network.from_state(tensors, json.loads(json.dumps(about)))
    for one in tensors.values():
        one.zero_()
    assert torch.equal(again(X), field(X))


def test_other_models_come_back_with_their_module() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 2)
    images = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), nn.Linear(8, 1)).double()
    tied = nn.Sequential(lnn.Linear(3, 6), lnn.MaxMin(), lnn.Linear(6, 1)).double()
    for net, example in ((images, torch.zeros(1, 1, 3, 3)), (tied, torch.zeros(1, 3))):
        field = sdf.Network(net, example.double())
        state = field.to_state()
        x = torch.randn(20, field.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        untrained = copy.deepcopy(net)
        with torch.no_grad():
            for weight in untrained.parameters():
                weight.mul_(0.5)
        again = sdf.Network.from_state(*state, model=untrained)
        assert again.shape == field.shape
        assert torch.equal(again(x), field(x))
        with pytest.raises(RecordError, match="give the model that it was made with"):
            sdf.Network.from_state(*state)


def test_states_that_were_changed_or_are_of_another_kind_are_refused() -> None:
    net = orthogonal_mlp(3, (8, 6), torch.Generator().manual_seed(2)).double()
    tensors, about = sdf.Network(net, X[:1]).to_state()
    moved = {**tensors, "2.bias": tensors["2.bias"] + 2.0**-50}
    rectified = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    for state, model in (
        ((moved, about), None),
        ((tensors, {**about, "computes": "0" * 64}), None),
        ((tensors, about), rectified),
    ):
        with pytest.raises(
            RecordError, match=r"The state was changed after it was made, or its model has other layers"
        ):
            sdf.Network.from_state(*state, model=model)
    for state in (
        ({}, about),
        (tensors, {}),
        ({"rows": X}, {"settings": "{}"}),
        (tensors, {**about, "widths": "[8]"}),
        (tensors, {**about, "widths": "nine"}),
        (tensors, {**about, "shape": "3"}),
        (tensors, {**about, "shape": "[4]"}),
        ({**tensors, "0.weight": tensors["0.weight"] * float("nan")}, about),
    ):
        with pytest.raises(RecordError, match="state"):
            sdf.Network.from_state(*state)


def test_nobody_holds_the_weights_that_are_evaluated() -> None:
    # In float64 no conversion makes a copy. |x - 0| at 1 is 1, whatever becomes of the copy.
    net = nn.Linear(1, 1).double()
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.zero_()
    field, state = sdf.Network(net, torch.zeros(1, 1, dtype=torch.float64)), None
    assert constant_of(field) == pytest.approx(1, rel=1e-12)
    state = field.to_state()
    with torch.no_grad():
        for weight in (*net.parameters(), *field.model.parameters()):
            weight.mul_(10).sub_(1)
    assert field(torch.ones(1, 1)).tolist() == [1.0]
    assert 0.99 < float(sdf.clearance(field, torch.ones(1, 1))) <= 1
    assert all(torch.equal(value, state[0][name]) for name, value in field.to_state()[0].items())


def test_one_function_is_one_field() -> None:
    field, other = sdf.Network(model(), X[:1]), sdf.Network(nn.Linear(3, 1).double(), X[:1])
    assert field.is_known_to_equal(sdf.Network(model(), X[:1]))
    assert not field.is_known_to_equal(other)
    assert not field.is_known_to_equal(sdf.Sphere(torch.zeros(3), 1.0))


def test_examples_that_the_model_does_not_take_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"does not take an example of shape \(1, 2\)"):
        sdf.Network(nn.Linear(3, 1), torch.zeros(1, 2))
    with pytest.raises(ShapeError, match=r"in torch\.float32"):
        sdf.Network(nn.Linear(3, 1).double(), torch.zeros(1, 3))
    with unchecked(), pytest.raises(ArgumentError, match=r"floating-point numbers, got torch\.int64"):
        sdf.Network(nn.Linear(3, 1), torch.zeros(1, 3, dtype=torch.long))


def test_networks_of_inference_mode_have_gradients() -> None:
    net = model()
    with torch.inference_mode():
        found = sdf.Network(net, X[:1]).gradient(X)
    assert torch.equal(found, sdf.Network(net, X[:1]).gradient(X))
