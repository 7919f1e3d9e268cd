"""Freezing, condensing, batching, projecting and parametrizing whole models."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.errors import ArgumentError, FrozenError, ShapeError, UnsupportedError
from lipkit.nn.core.unchanged_bits import checksum


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        lnn.Conv2d(1, 4, 3, padding=1),
        lnn.MaxMin(),
        lnn.SLLConv(4, (3, 3)),
        nn.Flatten(),
        lnn.Linear(64, 8),
        lnn.ConvexResidual(lnn.Sequential(lnn.Linear(8, 8), lnn.MaxMin(), K=0.5)),
        lnn.parametrize(nn.Linear(8, 3), "weight", lnn.Cayley()),
    )


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def test_frozen_weights_are_computed_once_for_each_type(x: Tensor) -> None:
    model = small()
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model[4].weight
    with lnn.frozen(model):
        first = model[4].weight
        assert model[4].weight is first
        assert torch.equal(model(x), expected)
        # Autocast would round a held float32 weight without making room for it.
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model[4].weight, rounded)
        assert model[4].weight is first
        with lnn.frozen(model):
            assert model[4].weight is first
        assert model[4].weight is first
    assert model[4].weight is not first
    assert model[4].weight.requires_grad


def test_frozen_notices_changes_and_lets_go_after_errors(x: Tensor) -> None:
    model = small()
    raw = model[4].get_parameter("parametrizations.weight.original")

    def disturb() -> None:
        with lnn.frozen(model):
            model(x)
            raw.data[0, 0] += 1e-3

    with pytest.raises(FrozenError, match=r"4\.parametrizations\.weight\.original"):
        disturb()
    with pytest.raises(KeyError), lnn.frozen(model):
        raise KeyError
    before = model(x)
    raw.data.mul_(1.5).add_(torch.randn_like(raw))
    assert not torch.equal(model(x), before)


def test_checksums_see_single_bits_and_places() -> None:
    a = torch.randn(100)
    b = a.clone()
    b.view(torch.int32)[57] ^= 1
    c = a.clone()
    c[[3, 4]] = c[[4, 3]]
    assert len({checksum(t) for t in (a, b, c, a.double())}) == 4
    assert checksum(a) == checksum(a.clone())


@pytest.mark.slow
def test_exporting_a_frozen_model_leaves_nothing_behind(x: Tensor) -> None:
    model = small().eval()
    with torch.no_grad():
        expected = model(x)
    with lnn.frozen(model):
        program = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(program(x), expected)
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_condensed_models_are_plain(x: Tensor, dtype: torch.dtype | None, tmp_path: Path) -> None:
    model = small().eval()
    plain: Any = lnn.condense(model, dtype)
    kinds = {type(module).__name__ for module in plain.modules()}
    assert not any(name.startswith("Parametrized") for name in kinds)
    assert not any("parametrizations" in name for name in plain.state_dict())
    with torch.no_grad():
        y, again = plain(x.to(dtype or x.dtype)), model(x)
    # Eight digits in bfloat16, over seven layers, with weights smaller by 2^-8 each.
    rtol, atol = (0.1, 0.05) if dtype == torch.bfloat16 else (1e-5, 1e-6)
    torch.testing.assert_close(y.to(again.dtype), again, rtol=rtol, atol=atol)
    copy = pickle.loads(pickle.dumps(plain))
    assert torch.equal(copy(x.to(y.dtype)), y)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_model(plain, str(file))
    other = lnn.condense(small(), dtype)
    safetensors.torch.load_model(other, str(file))
    assert torch.equal(other.eval()(x.to(y.dtype)), y)
    for module in plain.modules():
        if isinstance(module, nn.Linear):
            assert float(torch.linalg.matrix_norm(module.weight.detach().double(), 2)) <= 1


def test_condensed_residual_steps_are_proven_from_their_numbers() -> None:
    torch.manual_seed(0)
    for layer, most in ((lnn.SLLConv(4, (3, 3)), 1 + 1e-9), (lnn.CPL(6, 9), 1 + 1e-5), (lnn.CPLConv(3, (3, 3)), 1.03)):
        plain: Any = lnn.condense(layer)
        in_shape = (6,) if isinstance(layer, lnn.CPL) else (layer.geometry.cols, 5, 5)
        bound = lipkit.bounds.DAG()(lipkit.capture(plain, torch.randn(1, *in_shape)), lipkit.Everywhere())
        assert 1 <= float(bound.value.detach()) <= most
        with torch.no_grad():
            plain.coefficient.mul_(2)
        # Twice the steps: eigenvalues down to 1 - 4, so a constant of up to three.
        moved = float(plain.declared_lipschitz(in_shape).value)
        assert moved <= 3.1
        jacobian = torch.func.jacrev(lambda z, plain=plain: plain(z[None])[0])(5 * torch.randn(in_shape))
        size = torch.linalg.matrix_norm(jacobian.detach().reshape(torch.Size(in_shape).numel(), -1), 2)
        assert float(size) <= moved * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_condensed_models_run_in_onnx(x: Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    plain = lnn.condense(small().eval())
    file = tmp_path / "model.onnx"
    torch.onnx.export(plain, (x,), str(file), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(file))
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), plain(x).detach(), rtol=1e-4, atol=1e-5)


def test_layers_that_are_used_twice_stay_one() -> None:
    layer = lnn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    plain: Any = lnn.condense(model)
    assert plain[0] is plain[2]
    assert model[0] is layer


def test_batched_weights_and_gradients_are_those_of_each_alone() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        lnn.Linear(6, 6),
        lnn.Linear(6, 6),
        lnn.Linear(6, 6, method=lnn.Cayley()),
        nn.Unflatten(1, (2, 3)),
        lnn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"),
        lnn.Conv1d(2, 2, 3, padding=1),
        lnn.Conv1d(2, 2, 3, padding=1, groups=2),
    )
    x = torch.randn(3, 6)
    expected = model(x)
    gradients = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    with lnn.batched(model):
        found = model(x)
        assert model[0].weight is model[0].weight
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), list(model.parameters())), gradients)
    assert model[0].weight is not model[0].weight


def test_the_gain_in_bfloat16_covers_rounding_that_adds_up() -> None:
    """Entries near a midpoint between two numbers, rounded away from zero together: more than the usual margin."""
    n = 256
    layer = lnn.Linear(n, n, method=lnn.SingularClip())
    torch.manual_seed(0)
    signs = torch.where(torch.rand(n, n) < 0.616, 1.0, -1.0)
    # Positive entries just above a midpoint of the spacing 2^-13 at 2^-6, negative ones just below it.
    step = 2.0**-13
    size = torch.where(signs > 0, 2.0**-6 + 0.502 * step, 2.0**-6 + 0.498 * step) / (1 - 2.0**-8)
    layer.weight = signs * size
    assert layer.gain == 1
    before = float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))
    layer.to(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = layer.weight.detach().double()
    norm = float(torch.linalg.matrix_norm(rounded, 2))
    assert before <= 1
    layer.bfloat16()
    assert 1.05 < layer.gain < 1.07
    assert norm <= layer.gain
    assert float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2)) <= layer.gain
    plain: Any = lnn.condense(layer.float(), torch.bfloat16)
    assert float(torch.linalg.matrix_norm(plain.weight.detach().double(), 2)) <= 1


def test_project_keeps_the_weights_and_moves_the_free_numbers() -> None:
    layer = lnn.Linear(6, 4)
    raw = layer.get_parameter("parametrizations.weight.original")
    raw.data.mul_(3).add_(0.1 * torch.randn_like(raw))
    before = layer.weight.detach()
    lnn.project(layer)
    torch.testing.assert_close(layer.weight, before, rtol=0, atol=1e-5)
    # Where any multiple gives the same weight, a quarter of it.
    torch.testing.assert_close(raw.detach(), before / 4, rtol=0, atol=1e-5)


def test_project_constrains_plain_layers() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5))
    kernel = model[0].weight.detach().clone()
    lnn.project(model, linear=lnn.Bjorck())
    assert torch.equal(model[0].weight, kernel)
    lnn.project(model, conv=lnn.AOL())
    bounds = [lipkit.spectral_norm(model[0], (2, 4, 4)), lipkit.spectral_norm(model[2])]
    assert all(float(bound.lower.value.detach() if bound.lower else 0) <= 1 for bound in bounds)
    with pytest.raises(UnsupportedError, match="nothing to project"):
        lnn.project(nn.Linear(3, 3))


def test_parametrize_keeps_feasible_weights_and_can_be_undone() -> None:
    layer = nn.Linear(5, 5)
    nn.init.orthogonal_(layer.weight)
    before = layer.weight.detach().clone()
    lnn.parametrize(layer, "weight", lnn.Bjorck())
    torch.testing.assert_close(layer.weight, before, rtol=0, atol=1e-5)
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(layer.weight, before, rtol=0, atol=1e-5)
    with pytest.raises(UnsupportedError, match="stride"):
        lnn.parametrize(nn.Conv2d(2, 2, 3, 2, 1, padding_mode="circular"), "weight", lnn.AOL())
    with pytest.raises(UnsupportedError, match="no weight"):
        lnn.parametrize(nn.Embedding(3, 3), "weight", lnn.Bjorck())


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: lnn.parametrize(nn.Linear(3, 3), "bias", lnn.Bjorck()), ArgumentError, "got 'bias'"),
        (lambda: lnn.Linear(4, 3).declared_lipschitz((5,)), ShapeError, r"\(..., 4\).*got \(5,\)"),
        (lambda: lnn.Conv2d(3, 4, 3).declared_lipschitz((5, 8, 8)), ShapeError, r"\(3, \*size\).*got \(5, 8, 8\)"),
        (lambda: lnn.Linear(0, 3), ShapeError, "at least one entry"),
        (lambda: lnn.condense(lnn.Linear(3, 3), torch.int32), ArgumentError, "int32"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_wrong_arguments_get_one_sentence(build: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build()


def test_a_circle_that_the_stride_does_not_divide_is_refused() -> None:
    layer = lnn.Conv1d(1, 1, 3, stride=2, padding=1, padding_mode="circular")
    layer(torch.zeros(1, 1, 6))
    with pytest.raises(lipkit.errors.ShapeError, match="stride"):
        layer(torch.zeros(1, 1, 7))


@pytest.mark.parametrize("layer", [lnn.Spline(8), lnn.HouseholderActivation(8), lnn.LipSwish()], ids=str)
def test_declared_layers_in_float32_are_bounded_everywhere_and_on_balls(layer: nn.Module) -> None:
    model = nn.Sequential(lnn.Linear(8, 8), layer)
    x = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    for region in (lipkit.Everywhere(), lipkit.Ball(x[0].double(), 0.5)):
        bound = lipkit.lipschitz(model, x, region=region, method=lipkit.bounds.Auto(budget=600.0))
        assert bound.lower is not None
        assert 0.2 < float(bound.lower.value) <= float(bound.value.detach()) <= 1 + 1e-6
