"""How layers start: biases at zero, free numbers of the right size, and new draws from the same distribution."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize as torch_parametrize

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn import convex
from lipkit.nn.core.geometry import Geometry
from support.layers.examples import EVERY
from support.unchecked import unchecked

BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: lnn.Linear(6, 4),
    "Linear, Cayley": lambda: lnn.Linear(6, 4, method=lnn.Cayley()),
    "Conv2d": lambda: lnn.Conv2d(2, 6, 3, padding=1),
    "Conv1d, RKO": lambda: lnn.Conv1d(2, 6, 3, method=lnn.RKO()),
    "ConvTranspose2d": lambda: lnn.ConvTranspose2d(4, 2, 3),
    "ShiftBlock": lambda: lnn.ShiftBlock(8),
    "ShiftBlock, plain": lambda: lnn.ShiftBlock(8, method=None),
    "SLL": lambda: lnn.SLL(6),
    "CPLConv": lambda: lnn.CPLConv(3, 3),
    "SqrtRho": lambda: lnn.SqrtRho(6, 0.5),
}
# Residual layers draw their biases, the others start at zero.
RESIDUAL = (lnn.SLL, lnn.CPLConv, lnn.SqrtRho)
every_builder = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())


@every_builder
def test_biases_start_at_zero_except_in_residual_layers(build: Callable[[], nn.Module]) -> None:
    layer = build()
    bias = layer.bias
    assert isinstance(bias, nn.Parameter)
    assert bool(bias.any()) == isinstance(layer, RESIDUAL)


@every_builder
def test_reset_parameters_draws_what_a_new_layer_draws(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    layer = build()
    first = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    torch.manual_seed(1)
    layer.reset_parameters()  # pyright: ignore[reportCallIssue]
    drawn = layer.weight
    assert isinstance(drawn, torch.Tensor)
    assert not torch.allclose(drawn, _weight(first, build))
    bias = layer.bias
    assert isinstance(bias, nn.Parameter)
    # Far below the noise of variance 1 that was added.
    assert float(bias.detach().abs().max()) < (0.5 if isinstance(layer, RESIDUAL) else 1e-9)
    # The same distribution: singular values do not depend on the draw where the start is an isometry, sizes never do.
    sizes = [_size(build) for _ in range(8)]
    assert min(sizes) * 0.7 <= float(torch.linalg.vector_norm(drawn.detach())) <= max(sizes) * 1.4
    if "log_q" in first:
        assert not bool(layer.state_dict()["log_q"].any())


def _weight(state: dict[str, torch.Tensor], build: Callable[[], nn.Module]) -> torch.Tensor:
    other = build()
    other.load_state_dict(state)
    weight = other.weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _size(build: Callable[[], nn.Module]) -> float:
    weight = build().weight
    assert isinstance(weight, torch.Tensor)
    return float(torch.linalg.vector_norm(weight.detach()))


def test_a_weight_that_is_not_the_methods_any_more_is_not_drawn() -> None:
    layer = lnn.Linear(4, 4)
    torch_parametrize.remove_parametrizations(layer, "weight")
    with pytest.raises(UnsupportedError, match="build a new layer"):
        layer.reset_parameters()


@pytest.mark.parametrize("method", EVERY, ids=repr)
@pytest.mark.parametrize("geometry", [Geometry(1, 5, 3), Geometry(1, 3, 5)], ids=("tall", "wide"))
def test_methods_say_whether_the_scale_of_free_numbers_counts(method: lnn.WeightMethod, geometry: Geometry) -> None:
    try:
        method.promise(geometry)
    except UnsupportedError:
        pytest.skip("refuses matrices")
    torch.manual_seed(0)
    raw = torch.randn(geometry.groups, *method.free_shape(geometry), dtype=torch.float64) * 0.3
    once, half = method(raw, geometry), method(raw / 2, geometry)
    if method.scale_free:
        # Rounding of float64, and of iterations that end a little earlier or later.
        torch.testing.assert_close(once, half, rtol=0, atol=1e-9)
    elif type(method) not in (
        *(lnn.Householder, lnn.RKO, lnn.BCOP, lnn.AOC, convex.NonNegative, convex.Stochastic, convex.Orthostochastic),
    ):
        # Each vector of Householder's has a scale of its own, which says nothing; the others ask another method.
        assert not torch.allclose(once, half, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", [lnn.Bjorck(), lnn.QR(), lnn.AOL(), lnn.Spectral()], ids=str)
def test_free_numbers_start_at_a_quarter_and_stay_there_when_projected(method: lnn.WeightMethod) -> None:
    # Tall: the start is an isometry for all of them.
    layer = lnn.Linear(6, 8, method=method)
    raw = layer.get_parameter("parametrizations.weight.original")
    # What rounding leaves of correlations, and the excess of Spectral's bound, is far below 1e-3.
    torch.testing.assert_close(raw.detach(), layer.weight.detach() / 4, rtol=0, atol=1e-3)
    lnn.project(layer)
    torch.testing.assert_close(raw.detach(), layer.weight.detach() / 4, rtol=0, atol=1e-3)


def test_a_method_in_the_place_of_another_argument_is_refused() -> None:
    with unchecked(), pytest.raises(ArgumentError, match=r"Linear.bias .* Linear\(..., method=Cayley\(\)\)"):
        lnn.Linear(8, 8, lnn.Cayley())  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match=r"Conv2d.stride .*method=AOL\(\)"):
        lnn.Conv2d(8, 8, 3, lnn.AOL())  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match=r"ConvTranspose1d.padding .*method="):
        lnn.ConvTranspose1d(8, 8, 3, 1, lnn.AOL())  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match=r"ShiftBlock.bias .*method="):
        lnn.ShiftBlock(8, lnn.Cayley())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("build", [lambda: lnn.Linear(4, 4, method=None), lambda: lnn.Conv1d(4, 4, 3, method=None)])  # pyright: ignore[reportArgumentType] - what is refused
def test_no_method_is_refused_where_a_method_must_be(build: Callable[[], nn.Module]) -> None:
    with unchecked(), pytest.raises(ArgumentError, match=r"leave it out for the default, or use torch\.nn\."):
        build()
