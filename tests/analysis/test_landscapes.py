"""Landscapes: loss and proven constants on a grid, against models that are moved by hand."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import analysis, bounds
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, NonFiniteError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


X = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(16) % 3


def loss(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(X), Y)


def fold(model: nn.Module) -> Bound:
    return bounds.DAG()(lipkit.capture(model, X[:1]))


def directions(model: nn.Module, filter_normalised: bool = True) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    source = torch.Generator().manual_seed(2)
    return analysis.random_directions(model, source, filter_normalised=filter_normalised)


def bits(model: nn.Module) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in model.state_dict().values()]


def test_every_point_is_the_model_moved_there():
    model = network().eval()
    plane = directions(model)
    found = analysis.landscape(model, loss, fold, plane, (-0.5, 0.0, 1.0), (0.0, 0.25))
    assert found.loss.shape == found.log_constant.shape == (3, 2)
    for i, a in enumerate(found.first.tolist()):
        for j, b in enumerate(found.second.tolist()):
            moved = network().eval()
            with torch.no_grad():
                for name, parameter in moved.named_parameters():
                    parameter += a * plane[0][name] + b * plane[1][name]
            # One rounding of float32 weights and a loss of order one.
            assert float(found.loss[i, j]) == pytest.approx(float(loss(moved).detach()), abs=1e-5)
            first, norm, _, last = moved
            assert isinstance(first, nn.Linear)
            assert isinstance(last, nn.Linear)
            assert isinstance(norm, nn.BatchNorm1d)
            assert norm.running_var is not None
            weights = [first.weight.detach(), last.weight.detach()]
            scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
            dense = [scale[:, None] * weights[0], weights[1]]
            product = sum(math.log(float(torch.linalg.matrix_norm(one, 2))) for one in dense)
            # The fold proves the product of the norms, rounded up, in float32.
            assert product - 1e-6 <= float(found.log_constant[i, j]) <= product + 1e-3
    assert found.kind is Kind.UPPER


def test_the_middle_is_where_the_model_is():
    model = network().eval()
    found = analysis.landscape(model, loss, fold, directions(model), (0.0,), (0.0,))
    assert float(found.loss[0, 0]) == float(loss(model).detach())
    assert float(found.log_constant[0, 0]) == float(fold(model).log_value.detach())


def test_weights_and_statistics_are_put_back():
    # In training mode, every evaluation of the loss changes the statistics of the batch normalisation.
    model = network().train()
    before = bits(model)
    analysis.landscape(model, loss, fold, directions(model), (-1.0, 1.0), (0.5,))
    assert bits(model) == before
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_weights_are_put_back_after_an_exception():
    model = network().eval()
    before, calls = bits(model), []

    def fails(model: nn.Module) -> Tensor:
        calls.append(bits(model))
        if len(calls) == 2:
            raise RuntimeError("no loss today")
        return loss(model)

    with pytest.raises(RuntimeError, match="no loss today"):
        analysis.landscape(model, fails, fold, directions(model), (1.0, 2.0), (1.0,))
    assert calls[1] != before
    assert bits(model) == before


def test_a_point_without_a_number_is_refused_by_its_place():
    model = network().eval()
    before = bits(model)
    with pytest.raises(NonFiniteError, match=r"\(0, 2\) the loss is inf"):
        analysis.landscape(
            model, lambda m: loss(m) / float(bits(m) == before), fold, directions(model), (0.0,), (0.0, 2.0)
        )
    assert bits(model) == before


def test_filters_have_their_lengths_and_are_orthogonal():
    model = network()
    one, two = directions(model)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert not one[name].any()
            assert not two[name].any()
            continue
        lengths = torch.linalg.vector_norm(parameter.detach(), dim=1)
        for direction in (one, two):
            torch.testing.assert_close(torch.linalg.vector_norm(direction[name], dim=1), lengths)
        # A rounding of float32 an entry.
        assert float((one[name] * two[name]).sum(1).abs().max()) < 1e-6


def test_whole_directions_have_the_length_of_the_weights_and_are_orthogonal():
    model = network()
    one, two = (torch.cat([d.flatten() for d in part.values()]) for part in directions(model, filter_normalised=False))
    length = torch.cat([p.detach().flatten() for p in model.parameters()]).norm()
    torch.testing.assert_close(one.norm(), length)
    torch.testing.assert_close(two.norm(), length)
    assert abs(float(one @ two)) < 1e-5


def test_the_generator_decides():
    model = network()
    first, again = directions(model), directions(model)
    other = analysis.random_directions(model, torch.Generator().manual_seed(3))
    assert torch.equal(first[0]["0.weight"], again[0]["0.weight"])
    assert not torch.equal(first[0]["0.weight"], other[0]["0.weight"])


def test_points_of_the_plane_are_found_again():
    model = network().double()
    plane, centre = directions(model), dict(model.named_parameters())
    # Directions that are not orthogonal, and one that names a part of the parameters only.
    tilted = (plane[0], {"0.weight": plane[0]["0.weight"] + plane[1]["0.weight"]})
    wanted = torch.tensor([[0.0, 0.0], [0.5, -2.0], [1.0, 3.0]], dtype=torch.float64)
    path = [
        {
            n: p.detach() + float(a) * tilted[0][n] + float(b) * tilted[1].get(n, 0 * p.detach())
            for n, p in centre.items()
        }
        for a, b in wanted
    ]
    torch.testing.assert_close(analysis.project_weights(path, centre, tilted), wanted)


def test_what_makes_no_plane_is_refused():
    model = network().eval()
    plane = directions(model)
    centre = dict(model.named_parameters())
    with pytest.raises(ArgumentError, match="no such parameter"):
        analysis.landscape(model, loss, fold, ({"other": torch.zeros(1)}, plane[1]), (0.0,), (0.0,))
    with pytest.raises(ArgumentError, match=r"the model has shape \(6, 4\)"):
        analysis.landscape(model, loss, fold, ({"0.weight": torch.zeros(1)}, plane[1]), (0.0,), (0.0,))
    with pytest.raises(ArgumentError, match="got 0 and 1"):
        analysis.landscape(model, loss, fold, plane, (), (0.0,))
    with pytest.raises(ArgumentError, match="span no plane"):
        analysis.project_weights([centre], centre, (plane[0], plane[0]))
    with pytest.raises(ArgumentError, match="at least one point"):
        analysis.project_weights([], centre, plane)
    with pytest.raises(ArgumentError, match="no parameter that is not zero"):
        analysis.random_directions(nn.ReLU(), torch.Generator())


def test_one_estimate_makes_the_landscape_an_estimate():
    model, calls = network().eval(), []

    def sometimes(_: nn.Module) -> Bound:
        calls.append(1)
        return Bound.from_value(2.0, Kind.ESTIMATE if len(calls) == 2 else Kind.UPPER, None)

    found = analysis.landscape(model, loss, sometimes, directions(model), (0.0, 1.0, 2.0), (0.0,))
    assert found.kind is Kind.ESTIMATE
