"""Ordinary mistakes with models and examples: each is refused with its cause and its remedy, by every entrance."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, TensorDataset

import lipkit
from lipkit.bounds import DAG
from lipkit.errors import ArgumentError, CaptureError, LipkitError
from lipkit.trace.capture import capture
from support.networks.short_models import Model, linear, vector
from support.unchecked import unchecked


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))


def refusal(model: Any, example: Any, kind: type[LipkitError] = CaptureError, **options: Any) -> str:
    """What every entrance says of a model: all say the same."""
    said: list[str] = []
    for ask in (lipkit.lipschitz, lipkit.certificate):
        with pytest.raises(kind) as caught:
            ask(model, example, DAG(), **options)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


# The batch axis.


@pytest.mark.parametrize(
    ("make", "shape", "remedy"),
    [
        (small, (4,), r"runs on (1, 4): give x[None]"),
        (images, (1, 6, 6), r"runs on (1, 1, 6, 6): give x[None]"),
        (images, (6, 6), r"runs on (1, 1, 6, 6): give x[None, None] (--shape 1,6,6 on the command line)."),
        (lambda: nn.Conv2d(3, 4, 3), (3, 6, 6), r"runs on (1, 3, 6, 6): give x[None]"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 4)), (3, 6, 6), r"give x[None]"),
    ],
)
def test_a_missing_batch_axis_is_named(make: Callable[[], nn.Module], shape: tuple[int, ...], remedy: str):
    text = refusal(make(), torch.randn(shape))
    assert "no batch axis or no channels" in text
    assert remedy in text
    assert "Branches on values" not in text


def test_a_sample_that_fills_axis_zero_is_told_from_a_missing_axis():
    mix = torch.eye(5)
    nodes = Model(lambda self, x: torch.mm(mix, self.a(x)), a=linear(4, 3))
    assert "but not on its first entry along axis 0" in refusal(nodes, torch.randn(5, 4))


@pytest.mark.parametrize("shape", [(1, 5), (3, 5), (1, 3, 5)])
def test_wrong_sizes_are_told_in_the_words_of_the_model(shape: tuple[int, ...]):
    text = refusal(small(), torch.randn(shape))
    assert "cannot be multiplied" in text
    assert "batch axis" not in text
    assert "Branches on values" not in text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Model(lambda self, x: self.a(x)[0], a=nn.RNN(4, 3)),
        lambda: Model(lambda self, x: self.a(x)[0], a=nn.LSTM(4, 3)),
        lambda: Model(lambda self, x: self.a(x)[0], a=nn.GRU(4, 3)),
        lambda: Model(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2)),
        lambda: nn.TransformerEncoderLayer(4, 2, 8),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False),
    ],
)
def test_samples_along_axis_one_are_told_to_be(make: Callable[[], nn.Module]):
    text = refusal(make(), torch.randn(5, 2, 4))
    assert "has batch_first=False" in text
    assert "batch_first=True" in text


def test_a_sequence_without_batch_axis_is_told_to_have_none():
    attention = Model(lambda self, x: self.a(x, x, x)[0], a=nn.MultiheadAttention(4, 2, batch_first=True))
    text = refusal(attention, torch.randn(5, 4))
    assert "give an example of shape (1, time, features)" in text
    assert "batch_first=False" not in text


def test_a_mean_over_the_batch_is_not_blamed_on_a_sequence():
    text = refusal(Model(lambda self, x: self.a(x).mean(), a=linear(4, 3)), torch.randn(2, 4))
    assert "batch_first" not in text
    assert "flatten(1).sum(1)" in text


def test_statistics_of_a_batch_are_named_where_one_sample_has_none():
    text = refusal(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False)), torch.randn(2, 4))
    assert "track running statistics" in text
    assert "batch axis" not in text


# Quantised models.


def dynamic() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(small().eval(), {nn.Linear}, dtype=torch.qint8)


def prepared() -> nn.Module:
    model = nn.Sequential(torch.ao.quantization.QuantStub(), small(), torch.ao.quantization.DeQuantStub()).eval()
    model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")  # pyright: ignore[reportArgumentType]
    torch.ao.quantization.prepare(model, inplace=True)
    model(torch.randn(8, 4))
    return model


def static() -> nn.Module:
    return torch.ao.quantization.convert(prepared())


def aware() -> nn.Module:
    model = nn.Sequential(small()).train()
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")  # pyright: ignore[reportArgumentType]
    return torch.ao.quantization.prepare_qat(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("make", [dynamic, prepared, static, aware])
def test_quantised_models_are_told_to_be(make: Callable[[], nn.Module]):
    text = refusal(make(), torch.randn(1, 4))
    assert "quantises, or prepares for it" in text
    assert "bound the model in floating point" in text


def test_rounding_to_a_grid_inside_of_a_model_is_told_to_jump():
    grid = Model(lambda self, x: torch.fake_quantize_per_tensor_affine(self.a(x), 0.1, 0, -128, 127), a=linear(4, 3))
    assert "grid of a quantisation, which jumps" in refusal(grid, torch.randn(1, 4))


def test_weights_that_were_rounded_to_a_grid_are_bounded():
    rounded = torch.randint(-128, 127, (3, 4), dtype=torch.int8)
    model = Model(lambda _self, x: functional.linear(x, rounded.double() * 0.01))
    truth = float(torch.linalg.matrix_norm(rounded.double() * 0.01, 2))
    # The norm of one matrix: Gram is within 1e-9 of it.
    assert truth <= float(lipkit.lipschitz(model, vector(4), DAG()).value) <= truth * (1 + 1e-6)


# What is no model.


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (nn.ReLU, r"instance of it, ReLU\("),
        (functional.relu, "forward of a module"),
        (lambda: None, "forward of a module"),
        ([nn.ReLU()], "nn.Sequential"),
        (small().state_dict(), "load_state_dict"),
        ("model.pt", "load the model"),
        (3, "give the torch.nn.Module"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, remedy: str):
    for ask in (lipkit.lipschitz, lipkit.certificate, capture):
        with unchecked(), pytest.raises(ArgumentError, match=rf"must be a torch.nn.Module.*{remedy}"):
            ask(model, torch.randn(1, 4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_models_without_a_graph_are_told_why():
    assert "TorchScript" in refusal(torch.jit.script(small()), torch.randn(1, 4))
    assert "has no forward" in refusal(nn.ModuleList([nn.ReLU()]), torch.randn(1, 4))
    assert "'0' (LazyLinear) has no weights yet" in refusal(nn.Sequential(nn.LazyLinear(3)), torch.randn(2, 4))
    assert "'2' (Linear) are on the meta device" in refusal(
        nn.Sequential(linear(4, 4), nn.ReLU(), linear(4, 3).to("meta")), torch.randn(1, 4)
    )


def test_a_lazy_model_stays_as_it_is():
    layer = nn.LazyLinear(3)
    _ = refusal(nn.Sequential(layer), torch.randn(2, 4))
    assert is_lazy(layer.weight)


# What is no example.


@pytest.mark.parametrize(
    ("example", "remedy"),
    [
        (np.zeros((1, 4), np.float32), r"torch.from_numpy\(x\)"),
        ((np.zeros((1, 4), np.float32),), r"torch.from_numpy\(x\)"),
        (4, "tensor with a batch axis"),
        ("x", "tensor with a batch axis"),
        ([1.0, 2.0], "no tensor with axes"),
        ((1, 4), "no tensor with axes"),
        (None, "no tensor with axes"),
        (DataLoader(TensorDataset(torch.zeros(2, 4))), r"next\(iter\(loader\)\)\[0\]"),
        (torch.eye(4).to_sparse(), r"x.to_dense\(\)"),
        (torch.zeros(1, 4, device="meta"), "on a device"),
        (torch.zeros(1, 0), "no entries"),
        (torch.zeros(0, 4), "at least one sample"),
    ],
)
def test_what_is_no_example_is_refused(example: Any, remedy: str):
    for ask in (lipkit.lipschitz, lipkit.certificate):
        with unchecked(), pytest.raises(ArgumentError, match=remedy):
            ask(small(), example)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    assert "nested tensor" in refusal(small(), nested, ArgumentError)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantised_tensors_are_refused():
    grid = torch.quantize_per_tensor(torch.zeros(1, 4), 0.1, 0, torch.qint8)
    assert "x.dequantize()" in refusal(small(), grid, ArgumentError)


@pytest.mark.parametrize(
    ("example", "cause"),
    [
        ((torch.randn(2, 4), torch.tensor([0, 1])), "give the inputs without the labels"),
        ({"x": torch.randn(1, 4)}, "missing a required argument: 'input'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(example: Any, cause: str):
    assert cause in refusal(small(), example)


def test_the_kind_of_integers_decides_the_advice():
    assert "x.float()" in refusal(small(), torch.ones(1, 4, dtype=torch.int64))
    words = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))
    assert "wrt='0'" in refusal(words, torch.randint(0, 10, (1, 5)))
    assert "takes token ids" in refusal(words, torch.randn(1, 5))
    assert "nothing to bound" in refusal(nn.Embedding(10, 4), torch.randint(0, 10, (1, 5)))


@pytest.mark.parametrize(("method", "remedy"), [(DAG, r"give DAG\(\)"), ("lipsdp", "lipkit.bounds")])
def test_what_is_no_method_is_refused(method: Any, remedy: str):
    for ask in (lipkit.lipschitz, lipkit.certificate, lipkit.pairwise):
        with unchecked(), pytest.raises(ArgumentError, match=rf"must be an object.*{remedy}"):
            ask(small(), torch.randn(1, 4), method)


# What a model does that torch.export does not trace.


def derivative(self: Any, x: Tensor) -> Tensor:
    return torch.func.grad(lambda z: self.a(z).square().sum())(x)


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (derivative, "takes derivatives"),
        (lambda self, x: torch.vmap(self.a)(x), "vmap"),
        (lambda self, x: torch.from_numpy(np.tanh(self.a(x).detach().numpy())), "leaves torch"),
        (lambda self, x: type("Answer", (), {"y": self.a(x)})(), "torch.export.register_dataclass"),
        (lambda self, x: self.a(x).sum().item(), "returns no tensor"),
        (lambda self, x: self.a(x) * x.sum().item(), r"leave out .item()"),
        (lambda self, x: self.a(x) if x.sum() > 0 else x, "Branches on values"),
    ],
)
def test_the_cause_of_a_failed_export_is_named(run: Callable[..., Any], cause: str):
    assert cause in refusal(Model(run, a=linear(4, 4)), torch.randn(1, 4))


def test_the_buffers_of_a_model_that_is_tried_are_put_back():
    class Counter(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("again", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            self.again = self.count + 1
            return x * self.count

    model = Counter()
    again = model.again
    assert "changes its own state" in refusal(model, torch.randn(2, 4))
    assert float(model.count) == 0
    assert model.again is again
