"""What every layer promises, as checks that raise AssertionError; planted defects show that they can."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lipkit import nn as lnn
from lipkit.bound import L2, Bound, Metric
from lipkit.linops import Shape
from lipkit.nn.layers._constrained_layer import ConstrainedLayer
from lipkit.nn.methods._base import Promise
from lipkit.nn.methods.fourier._base import FourierMethod
from support.layers.series_oracle import series_matrix

UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def matrix_of(module: nn.Module, in_shape: Shape) -> Tensor:
    """The matrix of an affine module in float64 or complex128, column by column: no code of the library is involved."""
    wide = copy.deepcopy(module).requires_grad_(False)
    if isinstance(wide, ConstrainedLayer) and wide.geometry.series:
        return series_matrix(wide, in_shape)
    if isinstance(wide, ConstrainedLayer) and wide.geometry.wraps_outputs:
        return circle_matrix(wide, in_shape)
    size = math.prod(in_shape)
    with torch.no_grad():
        twin = plain_twin(wide)
        units = torch.eye(size, dtype=next(twin.parameters()).dtype).reshape(size, *in_shape)
        return twin(units).flatten(1).mT


def circle_matrix(layer: Any, in_shape: Shape) -> Tensor:
    """The matrix of a transposed convolution on a circle: the transpose of that of torch's convolution."""
    size = tuple(layer(torch.zeros(1, *in_shape, dtype=layer.weight.dtype)).shape[1:])
    kind = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[layer.weight.ndim]
    walk = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups, False, "circular")
    twin: Any = kind(size[0], in_shape[0], *walk).to(torch.float64)
    with torch.no_grad():
        twin.weight.copy_(layer.weight)
        units = torch.eye(math.prod(size), dtype=torch.float64).reshape(-1, *size)
        return twin(units).flatten(1)


def plain_twin(layer: Any) -> nn.Module:
    """torch's own layer with the weights the constrained one computes, converted to float64 afterwards; no bias."""
    weight = layer.weight.detach()
    kind = next(base for base in type(layer).__mro__ if base.__module__.startswith("torch.nn.modules"))
    twin: Any = object.__new__(kind)
    nn.Module.__init__(twin)
    twin.__dict__.update(
        {k: v for k, v in layer.__dict__.items() if not k.startswith("_") or k.startswith("_reversed")}
    )
    if isinstance(layer, ConstrainedLayer) and layer.geometry.transposed:
        # Circles that are wrapped have their own oracle; torch refuses to hear of others.
        twin.padding_mode = "zeros"
    twin.weight = nn.Parameter(weight.to(torch.promote_types(weight.dtype, torch.float64)), requires_grad=False)
    # Beside a bias the images of tiny weights would vanish.
    twin.bias = None
    return twin


def singular_values(layer: nn.Module, in_shape: Shape) -> Tensor:
    return torch.linalg.svdvals(matrix_of(layer, in_shape))


def norm_in(matrix: Tensor, metric: Metric) -> float:
    """The norm of a matrix by its definition."""
    if metric == L2:
        return float(torch.linalg.svdvals(matrix)[0])
    if metric == Metric(1.0, 1.0):
        return float(matrix.abs().sum(0).max())
    # Into linf: the dual norm of the largest row.
    return float(torch.linalg.vector_norm(matrix, {2.0: 2.0, math.inf: 1.0}[metric.p_in], dim=1).max())


def check_norm(layer: Any, in_shape: Shape) -> None:
    """1: the stored weights have a norm of at most what is declared, and that is at most one.

    In types of few digits rounding may add more to small kernels on a torus than their margin: there it is the gain.
    """
    matrix = matrix_of(layer, in_shape)
    assert bool(torch.isfinite(matrix).all())
    # The reference itself may be high by n 2^-53.
    slack = max(matrix.shape) * 2.0**-53
    declared: Bound = layer.declared_lipschitz(in_shape)
    truth = norm_in(matrix, declared.metric)
    few = layer.weight.dtype in (torch.bfloat16, torch.float16)
    most = layer.gain if few and isinstance(layer.method, FourierMethod) else 1.0
    assert truth <= most + slack, f"norm {truth!r}"
    assert declared.kind.certifies
    assert declared.metric == layer.method.metric(layer.geometry)
    assert float(declared.value.detach()) >= truth * (1 - slack)


def check_isometry(layer: nn.Module, in_shape: Shape, least: float) -> None:
    """2: where an isometry is promised, the smallest singular value is near one."""
    values = singular_values(layer, in_shape)
    assert float(values[-1]) >= least, f"smallest singular value {float(values[-1])!r}"


def check_steps(layer: nn.Module, in_shape: Shape, dtype: torch.dtype = torch.float32) -> None:
    """3: the norm holds from the first forward on, after steps of a fused optimizer, `.data` writes, in averages."""
    model = layer if dtype.is_complex else layer.to(dtype)
    # torch fuses no steps of complex numbers.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=not dtype.is_complex)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    check_norm(model, in_shape)
    for step in range(3):
        x = torch.randn(4, *in_shape, dtype=dtype)
        # A loss that rewards a large norm.
        (-model(x).abs().square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        check_norm(model, in_shape)
        check_norm(average.module, in_shape)
        for parameter in model.parameters():
            parameter.data.mul_(1.5 + step)
        check_norm(model, in_shape)


def check_declared(layer: Any, in_shape: Shape) -> None:
    """4: Jacobians and difference quotients of any layer, near and far, stay below its declared constant."""
    layer = layer.to(torch.float64).eval()
    declared = layer.declared_lipschitz(in_shape)
    assert declared.kind.certifies
    constant = float(declared.value.detach())
    assert constant <= layer.gain * (1 + 1e-12)
    for scale in (1e-3, 1.0, 30.0):
        x = scale * torch.randn(6, *in_shape, dtype=torch.float64)
        y = x + torch.randn_like(x) * torch.logspace(-3, 1, 6, dtype=torch.float64).reshape(6, *(1,) * len(in_shape))
        with torch.no_grad():
            moved = (layer(x) - layer(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        # A difference of nearby numbers of size 30 loses up to 30 * 1e3 units in the last place.
        assert float(moved.max()) <= constant * (1 + 1e-9)
        jacobian = torch.func.jacrev(lambda z: layer(z[None])[0])(x[0])
        values = torch.linalg.svdvals(jacobian.reshape(-1, x[0].numel()).detach())
        assert float(values[0]) <= constant * (1 + 1e-12), f"slope {float(values[0])!r} above {constant!r}"


def check_evaluation(model: nn.Module, x: Tensor) -> None:
    """5: evaluation writes no buffer, repeats bit by bit, and costs under `frozen` what the condensed model costs."""
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        first, second = model(x), model(x)
        assert torch.equal(first, second)
        after = model.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        with lnn.frozen(model):
            assert torch.equal(model(x), first)
            held = flops(lambda: model(x))
        plain = lnn.condense(model)
        # Coefficients may be multiplied in another order.
        torch.testing.assert_close(plain(x), first, rtol=1e-5, atol=1e-6)
        assert held == flops(lambda: plain(x))


def flops(fn: Callable[[], object]) -> int:
    """How many floating-point operations of products and convolutions a call takes."""
    with FlopCounterMode(display=False) as counter:
        fn()
    return counter.get_total_flops()


def check_saving(build: Callable[[], nn.Module], x: Tensor) -> None:
    """6: state_dict round trip into a fresh model, deepcopy, and a condensed model that can be pickled."""
    model = build().eval()
    y = model(x)
    other = build().eval()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), y)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), y)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.ones_like(parameter))
    assert torch.equal(model(x), y), "a copy shares tensors with its original"
    buffer = io.BytesIO()
    plain = lnn.condense(model)
    torch.save(plain, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert torch.equal(again(x), plain(x))


def check_gradients(model: nn.Module, x: Tensor) -> None:
    """10: derivatives in inputs and parameters against finite differences, also second ones, and under torch.func."""
    # A model of complex numbers is built in complex128: torch's conversions would drop their imaginary parts.
    wide = model if x.is_complex() else model.to(torch.float64)
    x = x.to(torch.promote_types(x.dtype, torch.float64)).requires_grad_()
    with torch.no_grad():
        # Initial weights have many zeros, where absolute values have kinks.
        for parameter in wide.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    parameters = dict(wide.named_parameters())
    names = list(parameters)

    def call(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(wide, dict(zip(names, values, strict=True)), (x,))

    inputs = (x, *parameters.values())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True, atol=1e-5)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True, atol=1e-4, rtol=1e-2)
    if x.is_complex():
        # torch.func takes Jacobians of real numbers alone.
        return
    one = torch.func.jacrev(lambda z, *values: call(z[None], *values)[0])
    per_sample = torch.func.vmap(one, (0, *(None for _ in names)))(x, *parameters.values())
    assert bool(torch.isfinite(per_sample).all())


def promised(layer: Any) -> Promise:
    return layer.method.promise(layer.geometry)
