"""Residual layers: Jacobians, finite differences, the matrix inequality for numbers as stored, refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Shape, materialize
from lipkit.nn.core.slopes import _SLOPES, slopes_of  # pyright: ignore[reportPrivateUsage]
from lipkit.nn.residual._base import ResidualLayer
from lipkit.nn.residual.cpl import CPL, CPLConv
from lipkit.nn.residual.sll import SLL, SLLConv
from lipkit.nn.residual.sqrt_rho import SqrtRho

LAYERS: dict[str, tuple[Callable[[], ResidualLayer], Shape]] = {
    "CPL": (lambda: CPL(5, 7), (5,)),
    "SLL": (lambda: SLL(6, 4), (6,)),
    "SLL, 3 steps": (lambda: SLL(4, 6, steps=3), (4,)),
    "SqrtRho": (lambda: SqrtRho(5, 2.5, 7), (5,)),
    "SqrtRho below one": (lambda: SqrtRho(5, 0.3, steps=2), (5,)),
    "CPLConv": (lambda: CPLConv(2, 3, 4), (2, 4, 5)),
    "CPLConv on a circle, groups": (lambda: CPLConv(4, (3, 1), 2, groups=2, padding_mode="circular"), (4, 4, 3)),
    "SLLConv": (lambda: SLLConv(2, 3), (2, 5, 4)),
    "SLLConv 1-D, dilated, on a circle": (
        lambda: SLLConv(2, 3, 5, dilation=2, padding_mode="circular", rank=1, steps=2),
        (2, 7),
    ),
    "SLLConv 3-D": (lambda: SLLConv(1, 3, 2, rank=3, activation=nn.Tanh()), (1, 3, 3, 2)),
}


def numbers(layer: nn.Module, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def jacobian(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.func.jacrev(layer)(x).detach().reshape(x.numel(), x.numel())


@pytest.mark.parametrize("name", LAYERS)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.1, 1.0, 10.0]))
@settings(max_examples=6)
def test_jacobians_and_differences_stay_within_the_constant(name: str, seed: int, scale: float) -> None:
    build, in_shape = LAYERS[name]
    layer = build().double()
    numbers(layer, scale, seed)
    generator = torch.Generator().manual_seed(seed)
    declared = layer.declared_lipschitz(in_shape)
    assert declared.kind is Kind.UPPER
    x, y = (scale * torch.randn(in_shape, dtype=torch.float64, generator=generator) for _ in range(2))
    # Products of the Jacobian and the SVD round by some n 2^-53.
    assert float(torch.linalg.matrix_norm(jacobian(layer, x), 2)) <= layer.gain + 1e-13 <= float(declared.value) + 1e-13
    with torch.no_grad():
        quotient = (layer(x) - layer(y)).norm() / (x - y).norm()
    assert float(quotient) <= layer.gain + 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_step_sizes_are_safe_for_the_numbers_as_stored(name: str, dtype: torch.dtype) -> None:
    """The largest eigenvalue of W' C W, in float64, for the weights and step sizes as they are multiplied with."""
    build, in_shape = LAYERS[name]
    for seed in range(4):
        layer = build().to(dtype)
        numbers(layer, 0.7, seed)
        with torch.no_grad():
            c = layer.coefficient_of(layer.weight).double()
        assert bool((c > 0).all())
        operator = materialize(layer.geometry.operator(layer.weight.detach().double(), in_shape))
        each = c.repeat_interleave(len(operator) // len(c))
        largest = float(torch.linalg.matrix_norm(operator * each.sqrt()[:, None], 2)) ** 2
        # The SVD may be high by n 2^-53.
        assert largest <= 2 * (1 + 1e-13)
        if name.startswith("CPL") and dtype == torch.float64 and "Conv" not in name:
            assert largest > 1.96


def test_sll_as_published() -> None:
    """T_i = sum_j |W W'|_ij q_j/q_i, written out; W scaled by R = T^(-1/2) with one step is AOL."""
    layer = SLL(4, 6).double()
    numbers(layer, 1.0, 0)
    w, q = layer.weight.detach(), layer.log_q.detach().exp()
    t = ((w @ w.mT).abs() * (q[None, :] / q[:, None])).sum(1)
    torch.testing.assert_close(layer.coefficient_of(w), 2 / t, rtol=1e-12, atol=0)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert layer.bias is not None
    expected = x - (2 / t * torch.relu(x @ w.mT + layer.bias)) @ w
    torch.testing.assert_close(layer(x), expected, rtol=1e-11, atol=1e-12)


def test_cpl_is_the_limit_of_sll() -> None:
    weight = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    potential, diagonal = CPL(4, 5).double(), SLL(4, 5, steps=6).double()
    exact = 2 / torch.linalg.matrix_norm(weight, 2) ** 2
    assert float(potential.coefficient_of(weight)[0]) <= float(exact)
    torch.testing.assert_close(potential.coefficient_of(weight), exact.expand(5), rtol=0.02, atol=0)
    torch.testing.assert_close(diagonal.coefficient_of(weight).amin(), exact, rtol=0.1, atol=0)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("scale", [0.0, 1e-37, 1e30])
def test_degenerate_weights(name: str, scale: float) -> None:
    build, in_shape = LAYERS[name]
    layer = build()
    with torch.no_grad():
        layer.weight.mul_(scale)
    x = torch.randn(2, *in_shape)
    y = layer(x)
    y.square().sum().backward()
    assert bool(torch.isfinite(y).all())
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in layer.parameters())
    if scale == 0.0:
        torch.testing.assert_close(y, layer.gain * x)


def test_gradients() -> None:
    for build, in_shape in LAYERS.values():
        layer = build().double()
        layer.activation = nn.Tanh()
        x = torch.randn(1, *in_shape, dtype=torch.float64, requires_grad=True)
        names = [name for name, _ in layer.named_parameters()]

        def call(x: Tensor, *values: Tensor, layer: nn.Module = layer, names: list[str] = names) -> Tensor:
            return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

        values = [p.detach().clone().requires_grad_() for p in layer.parameters()]
        # Numbers are rounded down by units of 2^-52, which is far below the differences taken here.
        assert torch.autograd.gradcheck(call, (x, *values), fast_mode=True)


@pytest.mark.parametrize("name", LAYERS)
def test_condensed_layers_are_the_same_function(name: str) -> None:
    build, in_shape = LAYERS[name]
    layer = build()
    x = torch.randn(2, *in_shape)
    assert torch.equal(layer.to_plain()(x), layer(x))
    half = layer.to_plain(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    weight, c = half.get_parameter("weight").double(), half.get_parameter("coefficient").double()
    operator = materialize(layer.geometry.operator(weight.detach(), in_shape))
    each = c.repeat_interleave(len(operator) // len(c))
    assert float(torch.linalg.matrix_norm(operator.detach() * each.sqrt()[:, None], 2).detach()) ** 2 <= 2 * (1 + 1e-13)


@pytest.mark.parametrize("name", ["CPL", "SLL", "SqrtRho", "SLLConv"])
def test_autocast_and_unbatched_inputs(name: str) -> None:
    build, in_shape = LAYERS[name]
    layer = build()
    x = torch.randn(in_shape)
    torch.testing.assert_close(layer(x), layer(x[None])[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x[None])
    torch.testing.assert_close(y[0].float(), layer(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "activation", [nn.GELU(), nn.SELU(), nn.ELU(1.5), nn.LeakyReLU(-0.5), nn.PReLU(), nn.Hardshrink()]
)
def test_other_activations_are_refused(activation: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="about 3"):
        CPL(3, activation=activation)


def test_slopes_of_activations_are_those_of_their_graphs() -> None:
    """By differences on a fine grid; float64 differences of 1e-3 round by 1e-12, and softplus changes by 2e-9 at 20."""
    z = torch.arange(-30, 30, 1e-3, dtype=torch.float64)
    for kind in _SLOPES:
        for module in (kind(), *((kind(alpha) for alpha in (0.3, -2.0)) if kind in (nn.ELU, nn.LeakyReLU) else ())):
            found = slopes_of(module)
            assert found is not None
            slopes = module(z).diff() / 1e-3
            assert found[0] - 1e-5 <= float(slopes.min())
            assert float(slopes.max()) <= found[1] + 1e-5
            # The constant is not just any bound: it is reached, up to the grid (Tanhshrink: 1 - tanh' at 30).
            assert max(map(abs, found)) <= float(slopes.abs().max()) + 2e-3


@pytest.mark.parametrize("make", [lambda: SLL(4, 4), lambda: SqrtRho(4, 2.0), lambda: lnn.condense(CPL(4))])
def test_an_exchanged_activation_is_checked_again(make: Callable[[], Any]) -> None:
    layer = make()
    assert float(layer.declared_lipschitz((4,)).value) > 0
    layer.activation = lnn.Absolute()
    with pytest.raises(UnsupportedError, match="about 3"):
        layer.declared_lipschitz((4,))
    if isinstance(layer, lnn.SLL | lnn.SqrtRho):
        with pytest.raises(UnsupportedError, match="about 3"):
            _ = layer.gain


def test_a_model_with_an_exchanged_activation_is_read_operation_by_operation() -> None:
    torch.manual_seed(0)
    layer = SLL(4, 4, bias=False).double()
    layer.activation = lnn.Absolute()
    x = torch.randn(1, 4, dtype=torch.float64)
    bound = lipkit.lipschitz(layer, x)
    jacobian = torch.func.jacrev(layer)(x)[0, :, 0]
    step = torch.linalg.matrix_norm(jacobian.detach(), 2)
    assert float(bound.value.detach()) >= float(step) > 1


def test_absolute_values_reach_three() -> None:
    """The reason of the refusal: with |.| the same formula has a constant near 3, attained where slopes are -1."""
    layer = CPL(3, 3, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))
    c = layer.coefficient_of(layer.weight.detach())
    x = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    found = torch.func.jacrev(lambda x: x - c * (layer.weight.detach().mT @ (layer.weight.detach() @ x).abs()))(x)
    assert 2.9 < float(torch.linalg.matrix_norm(found, 2)) <= 3


def test_published_condition_of_the_scaled_layer_is_false_for_negative_slopes() -> None:
    """Slopes in [a, 1], rho = 1, W = 1: the printed condition allows T = 2/(1 + a)^2."""

    def printed(a: float, t: float, x: float) -> float:
        """The slope at x of x - (a + 1) T phi(x), phi(x) = x for x > 0 and a x below."""
        at = torch.tensor(x, dtype=torch.float64)
        return float(torch.func.grad(lambda x: x - (a + 1) * t * nn.functional.leaky_relu(x, a))(at))

    assert printed(-0.5, 8.0, 1.0) == -3
    assert all(printed(-0.5, t, -1.0) > 1 for t in (8.0, 1.0, 2.0**-10))
    # The library refuses such slopes; with those of ReLU its layer is the printed one, and within its constant.
    with pytest.raises(UnsupportedError, match=r"slopes in \[0, 1\]"):
        SqrtRho(1, 1.0, activation=nn.LeakyReLU(-0.5))
    layer = SqrtRho(1, 1.0, bias=False).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    for x in (-1.0, 1.0):
        slope = float(jacobian(layer, torch.tensor([x], dtype=torch.float64)))
        # The safety factor is 1 - 2^-22.
        assert slope == pytest.approx(printed(0.0, 2.0, x), abs=1e-6)
        assert abs(slope) <= layer.gain


def test_scaled_layer() -> None:
    layer = SqrtRho(3, 4.0).double()
    with torch.no_grad():
        layer.weight.zero_()
    x = torch.randn(3, dtype=torch.float64)
    # The factor is 2 (1 - 2^-22).
    torch.testing.assert_close(layer(x), 2 * x, rtol=1e-6, atol=0)
    assert 2 <= layer.gain < 2 + 1e-12
    with pytest.raises(ArgumentError, match="rho"):
        SqrtRho(3, 0.0)


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="odd kernel"):
        SLLConv(2, 4)
    with pytest.raises(ArgumentError, match="groups"):
        SLLConv(3, 3, groups=2)
    with pytest.raises(ArgumentError, match="steps"):
        SLL(3, steps=0)
    with pytest.raises(UnsupportedError, match="reflect"):
        CPLConv(2, 3, padding_mode="reflect")
