"""Statements about a weight hold for inputs of every size: feasibility, condensed weights, declared constants."""

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize as torch_parametrize

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Metric
from lipkit.errors import LipkitError, MetricError, NonFiniteError, ShapeError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn import WeightMethod
from lipkit.nn.core.constrained import Constrained
from support.layers.checks import matrix_of
from support.layers.examples import EVERY

Build = Callable[[WeightMethod], Any]


def feasible(layer: Any, weight: Tensor) -> bool:
    return layer.parametrizations.weight[0].is_feasible(weight)


def flat(excess: float, *axes: int) -> Tensor:
    """The mean over windows, times 1 + excess: the norm is that only on images far longer than the window."""
    taps = math.prod(axes)
    return torch.full((1, 1, *axes), (1 + excess) / taps, dtype=torch.float64)


@pytest.mark.parametrize("method", [lnn.AOL(), lnn.RKO(), lnn.Spectral(), lnn.Rescale()], ids=repr)
def test_a_kernel_that_exceeds_one_on_long_signals_only_is_infeasible(method: WeightMethod) -> None:
    layer: Any = lnn.Conv1d(1, 1, 31, method=method)
    signal = torch.ones(1, 1, 20000, dtype=torch.float64)
    over = nn.functional.conv1d(signal, flat(0.06, 31)).norm() / signal.norm()
    assert float(over) > 1.058
    # On 64 samples it is one: that proves nothing.
    assert float(nn.functional.conv1d(signal[..., :64], flat(0.06, 31)).norm() / signal[..., :64].norm()) < 1
    for excess in (0.06, 1e-3, 1e-5):
        assert not feasible(layer, flat(excess, 31))
    assert feasible(layer, flat(-1e-7, 31))
    wide: Any = lnn.Conv2d(1, 1, (1, 31), method=method)
    assert not feasible(wide, flat(1e-3, 1, 31))


def test_weights_rounded_to_bfloat16_keep_their_norm_on_long_signals() -> None:
    # A sum of Hadamard matrices whose entries all are rounded up.
    n, taps = 16, 32
    small = torch.ones(4, 4, dtype=torch.float64) - 2 * torch.eye(4, dtype=torch.float64)
    signs = torch.kron(small, small)
    middle = (1 - 3 * 2.0**-9) / (4 * taps)
    matrix = signs * (middle + signs * 1e-2 * middle * 2.0**-9) / (1 - 2.0**-8)
    layer: Any = lnn.Conv1d(n, n, taps, bias=False, dtype=torch.float64, method=lnn.RKO(lnn.SingularClip()))
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(matrix[:, :, None].expand(n, n, taps) * math.sqrt(taps))
    for dtype in (torch.bfloat16, torch.float16):
        weight = lnn.condense(layer, dtype).weight
        assert isinstance(weight, Tensor)
        # The gain of a constant signal.
        assert 0.98 < float(torch.linalg.matrix_norm(weight.detach().double().sum(-1), 2)) <= 1


GEOMETRIES: dict[str, Build] = {
    "matrix": lambda method: lnn.Linear(20, 30, method=method),
    "long": lambda method: lnn.Conv1d(3, 4, 7, padding=3, method=method),
    "image": lambda method: lnn.Conv2d(8, 8, 3, padding=1, method=method),
    "strided": lambda method: lnn.Conv2d(4, 6, 3, stride=2, padding=1, method=method),
    "blocks": lambda method: lnn.Conv2d(4, 4, 2, stride=2, method=method),
    "one tap": lambda method: lnn.Conv2d(8, 8, 1, method=method),
    "transposed": lambda method: lnn.ConvTranspose2d(4, 4, 3, stride=2, method=method),
    "circle": lambda method: lnn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=2, method=method),
    "volume": lambda method: lnn.Conv3d(2, 2, 3, padding=1, method=method),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", EVERY, ids=repr)
def test_a_method_finds_its_own_weights_feasible(method: WeightMethod) -> None:
    torch.manual_seed(0)
    for name, build in GEOMETRIES.items():
        try:
            layer = build(method)
        except LipkitError:
            continue
        assert feasible(layer, layer.weight), name
        if method == lnn.Bjorck(steps=3):
            # So few steps may end in a contraction that is no isometry, which is said.
            continue
        for rate in (1e-3, 1e-2):
            optimizer = torch.optim.Adam(layer.parameters(), lr=rate)
            (-layer(torch.randn(2, *one_input(layer))).square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert feasible(layer, layer.weight), f"{name} after a step of {rate}"


def one_input(layer: Any) -> Shape:
    if isinstance(layer, nn.Linear):
        return (layer.in_features,)
    return (layer.in_channels, *(layer.geometry.size or (8,) * len(layer.kernel_size)))


def test_larger_weights_are_infeasible_and_numbers_that_are_none_refused() -> None:
    layer: Any = lnn.Conv2d(4, 4, 3, padding=1)
    assert not feasible(layer, layer.weight * 1.0001)
    assert not feasible(layer, layer.weight * 1e30)
    assert not feasible(layer, torch.full_like(layer.weight, math.inf))
    with pytest.raises(NonFiniteError):
        feasible(layer, layer.weight * math.nan)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_condensed_circles_with_a_stride_keep_the_check_of_sizes(rank: int, tmp_path: Path) -> None:
    kind: Any = (lnn.Conv1d, lnn.Conv2d, lnn.Conv3d)[rank - 1]

    def build() -> Any:
        return kind(1, 2, 3, stride=2, padding=1, padding_mode="circular").eval()

    layer = build()
    plain: Any = lnn.condense(layer)
    good, bad = torch.randn(2, 1, *(4,) * rank), torch.randn(2, 1, *(5,) * rank)
    assert torch.equal(plain(good), layer(good))
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    buffer.seek(0)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_model(plain, str(file))
    other = lnn.condense(build())
    safetensors.torch.load_model(other, str(file))
    for copy in (plain, pickle.loads(pickle.dumps(plain)), torch.load(buffer, weights_only=False), other):
        assert torch.equal(copy(good), plain(good))
        with pytest.raises(ShapeError, match="sizes that the stride divides, got"):
            copy(bad)
    assert isinstance(plain, nn.modules.conv._ConvNd)
    assert not plain.state_dict().keys() ^ {"weight", "bias"}
    assert float(lipkit.spectral_norm(plain, (1, *(4,) * rank)).value.detach()) <= 1 + 1e-12
    with pytest.raises(ShapeError, match="sizes that the stride divides"):
        lipkit.spectral_norm(plain, (1, *(5,) * rank))
    torch.testing.assert_close(torch.export.export(plain, (good,)).module()(good), plain(good))
    # Elsewhere nothing has to be checked.
    for other in (kind(1, 2, 3, padding=1, padding_mode="circular"), kind(1, 2, 3, stride=2, padding=1)):
        assert type(lnn.condense(other)).__module__.startswith("torch.nn")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_condensed_circles_run_in_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    plain = lnn.condense(lnn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="circular").eval())
    x, file = torch.randn(2, 2, 6, 4), tmp_path / "model.onnx"
    torch.onnx.export(plain, (x,), str(file), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(file))
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), plain(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_constrained_layer_declares_what_its_method_promises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = GEOMETRIES[name](lnn.Spectral())
    monkeypatch.setattr(lnn.Spectral, "__call__", lambda *_: pytest.fail("the weight was computed"))
    bound = layer.declared_lipschitz(one_input(layer))
    assert bound.kind.certifies
    assert float(bound.value) == layer.gain == 1


def test_what_is_declared_of_a_large_convolution_is_at_most_its_gain() -> None:
    layer = lnn.Conv2d(8, 8, 3, padding=1)
    assert float(layer.declared_lipschitz((8, 64, 64)).value) == layer.gain == 1
    short = lnn.Conv2d(8, 8, 3, padding=1, dtype=torch.bfloat16)
    assert 0.9 < float(short.declared_lipschitz((8, 64, 64)).value.detach()) <= short.gain


def test_shapes_that_a_layer_refuses_have_no_constant() -> None:
    layer = lnn.Conv2d(1, 1, 3, stride=2, padding=1, padding_mode="circular")
    with pytest.raises(ShapeError, match="sizes that the stride divides"):
        layer.declared_lipschitz((1, 5, 5))
    with pytest.raises(ShapeError, match=r"\(1, \*size\)"):
        layer.declared_lipschitz((2, 4, 4))


def test_a_promise_ends_with_the_parametrization() -> None:
    removed: Any = lnn.Linear(4, 4)
    torch_parametrize.remove_parametrizations(removed, "weight")
    with torch.no_grad():
        removed.weight.mul_(3)
    assert float(removed.declared_lipschitz((4,)).value.detach()) == pytest.approx(3, rel=1e-5)
    exchanged: Any = lnn.Linear(4, 4)
    exchanged.parametrizations.weight[0] = Constrained(lnn.UnitRows(), exchanged.geometry)
    with torch.no_grad():
        exchanged.parametrizations.weight.original.fill_(1.0)
    # Four equal rows of norm one, by a bound that is sharp for isometries.
    assert float(exchanged.declared_lipschitz((4,)).value.detach()) == pytest.approx(2, rel=1e-4)
    with pytest.raises(UnsupportedError, match="exchanged"):
        _ = exchanged.gain
    other: Any = lnn.Linear(4, 4, method=lnn.UnitRows())
    with pytest.raises(MetricError):
        _ = other.gain
    assert other.declared_lipschitz((4,)).metric == Metric(2.0, math.inf)


def test_nothing_is_promised_of_numbers_that_are_none() -> None:
    layer: Any = lnn.Conv2d(2, 2, 3)
    layer.parametrizations.weight.original.data[0, 0] = math.nan
    with pytest.raises(NonFiniteError):
        layer.declared_lipschitz((2, 4, 4))


def test_what_autocast_multiplies_with_is_proven() -> None:
    layer: Any = lnn.Conv2d(8, 8, 3, padding=1)
    with torch.no_grad():
        layer.parametrizations.weight.original.normal_()
    with torch.autocast("cpu", torch.bfloat16):
        declared, weight = layer.declared_lipschitz((8, 6, 6)), layer.weight.detach()
    used = lnn.condense(layer)
    used.weight = nn.Parameter(weight)
    truth = float(torch.linalg.svdvals(matrix_of(used, (8, 6, 6)))[0])
    assert truth <= float(declared.value.detach()) * (1 + 1e-12)


LINES = [lnn.UnitRows(), *(lnn.UnitLines(m) for m in (Metric(2.0, math.inf), Metric(math.inf, math.inf)))]


@pytest.mark.parametrize("method", [*LINES, lnn.UnitLines(Metric(1.0, 1.0))], ids=repr)
def test_convolutions_in_other_norms_are_proven_on_large_images(method: WeightMethod) -> None:
    torch.manual_seed(0)
    layer: Any = lnn.Conv2d(16, 16, 3, padding=1, method=method)
    bound = layer.declared_lipschitz((16, 64, 64))
    assert bound.metric == method.metric(layer.geometry)
    assert 0.99 < float(bound.value.detach()) <= 1 + 1e-12
    short: Any = lnn.condense(layer, torch.bfloat16)
    weight = short.weight.detach().double()
    sums = weight.square().sum((1, 2, 3)).sqrt(), weight.abs().sum((1, 2, 3)), weight.abs().sum((0, 2, 3))
    at = {Metric(2.0, math.inf): 0, Metric(math.inf, math.inf): 1, Metric(1.0, 1.0): 2}[bound.metric]
    assert 0.95 < float(sums[at].max()) <= 1
