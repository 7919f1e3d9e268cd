"""What `capture` promises: the network is the model, on the inputs and the output asked for."""

import io
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, CaptureError
from lipkit.trace import torch_export as canonical
from lipkit.trace.capture import capture
from support.zoo.models import ZOO


@pytest.mark.parametrize("name", ZOO)
def test_the_network_is_the_model(name: str):
    module, example = ZOO[name]()
    network = capture(module, example)
    assert network.source == tuple(example.shape[1:])
    x = torch.cat([example, 3 * torch.randn_like(example)])
    with torch.no_grad():
        expected = module(x.clone())
        found = network(x)
    assert found.shape == expected.shape
    assert network.target == tuple(expected.shape[1:])
    # float64 throughout; the deepest model has 30 rows, so 1e-13 of the largest entry is what rounding can do.
    assert torch.allclose(found, expected, rtol=0, atol=1e-11 * (1 + float(expected.abs().max())))


@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet", marks=pytest.mark.slow), "parametrized", "in_place"])
def test_gradients_reach_the_parameters(name: str):
    module, example = ZOO[name]()
    network = capture(module, example)
    parameters = list(module.parameters())
    found = torch.autograd.grad(network(example).square().sum(), parameters, allow_unused=True)
    expected = torch.autograd.grad(module(example.clone()).square().sum(), parameters, allow_unused=True)
    for ours, theirs in zip(found, expected, strict=True):
        # A parameter without influence (the original of an orthogonal bias, say) is None on both sides.
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)


class Two(nn.Module):
    """Two real inputs, one discrete one, several results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor], *, scale: Tensor, power: int = 1) -> dict[str, Any]:
        left, right = pair
        hidden = torch.relu(self.a(x) + self.b(left) * scale) * power
        return {"hidden": hidden, "parts": [hidden.sum(1), right], "count": 3}


def two() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    x, left = (torch.randn(2, n, generator=generator, dtype=torch.float64) for n in (3, 2))
    right = torch.tensor([[1], [2]])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Two().double(), (x, (left, right)), {"scale": torch.full((2, 1), 1.5, dtype=torch.float64), "power": 2}


def test_several_real_inputs_are_joined_in_order():
    module, args, kwargs = two()
    network = capture(module, *args, **kwargs, output="hidden")
    assert (network.source, network.target) == ((3 + 2 + 1,), (4,))
    joined = torch.cat([args[0], args[1][0], kwargs["scale"]], 1)
    assert torch.allclose(network(joined), module(*args, **kwargs)["hidden"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("wrt", "shape"),
    [("x", (3,)), ("pair", (2,)), ("pair[0]", (2,)), ("scale", (1,)), (("scale", "x"), (4,)), (("x", "scale"), (4,))],
)
def test_an_input_is_chosen_by_name(wrt: str | tuple[str, ...], shape: tuple[int, ...]):
    module, args, kwargs = two()
    network = capture(module, *args, **kwargs, wrt=wrt, output="hidden")
    assert network.source == shape
    known = {"x": args[0], "pair": args[1][0], "pair[0]": args[1][0], "scale": kwargs["scale"]}
    sample = torch.cat([known[name][:1] for name in ((wrt,) if isinstance(wrt, str) else wrt)], 1)
    assert torch.allclose(network(sample), module(*args, **kwargs)["hidden"][:1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("output", "shape"), [("hidden", (4,)), (0, (4,)), ("parts[0]", (1,)), (1, (1,))])
def test_an_output_is_chosen_by_name_or_position(output: str | int, shape: tuple[int, ...]):
    module, args, kwargs = two()
    assert capture(module, *args, **kwargs, wrt="x", output=output).target == shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"returns 3 tensors; name one of them by output .*: hidden \(0\), parts\[0\] \(1\), parts\[1\] \(2\)"),
        ({"output": "logits"}, r"no tensor called 'logits'; output .* is one of: hidden \(0\), parts"),
        ({"output": 3}, r"no tensor called 3"),
        ({"output": "parts[1]"}, r"the output is torch.int64"),
        (
            {"output": "hidden", "wrt": "y"},
            r"'y' is neither an input of the model \(those are: pair, power, scale, x\)",
        ),
        ({"output": "hidden", "wrt": ("x", "x")}, r"must name every input once"),
        ({"output": "hidden", "wrt": "power"}, r"'power' is not a floating-point tensor"),
    ],
)
def test_wrong_names_are_refused(options: dict[str, Any], message: str):
    module, args, kwargs = two()
    with pytest.raises(CaptureError, match=message):
        _ = capture(module, *args, **kwargs, **options)


class Pair(NamedTuple):
    """Two named results."""

    mean: Tensor
    spread: Tensor


class Named(nn.Module):
    """A model that returns a named tuple."""

    def forward(self, x: Tensor) -> Pair:
        return Pair(x.mean(1), x * 2)


def test_fields_are_names():
    assert capture(Named(), torch.randn(2, 3), output="spread").target == (3,)
    assert capture(Named(), torch.randn(2, 3), output="mean").target == (1,)


def test_a_module_may_be_the_source():
    module: Any
    module, example = ZOO["mlp"]()
    network = capture(module, example, wrt="1")
    hidden = torch.relu(module[0](example))
    assert network.source == (8,)
    assert torch.allclose(network(hidden), module(example), rtol=0, atol=1e-12)


class Again(nn.Module):
    """One layer, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.a(x).relu()) * 2


def test_one_of_several_calls_is_chosen_by_its_number():
    module, x = Again(), torch.randn(2, 3)
    with pytest.raises(CaptureError, match=r"'a' is called 2 times; name one of its calls: a@0, a@1"):
        _ = capture(module, x, wrt="a")
    first, second = capture(module, x, wrt="a@0"), capture(module, x, wrt="a@1")
    # float32, a product and a sum of three.
    assert torch.allclose(first(x), module.a(x.relu()) * 2, atol=1e-5)
    assert torch.equal(second(x), 2 * x)


def test_a_constant_output_is_a_constant_network():
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones_like(x) * 3 + x.new_zeros(1)

    network = capture(Constant(), torch.randn(2, 3))
    assert network.blocks.keys() == {(2, 1)}
    assert torch.equal(network(torch.randn(4, 3)), torch.full((4, 3), 3.0))


def test_an_example_is_needed():
    for nothing in ((), (torch.tensor(1.0),)):
        with pytest.raises(ArgumentError, match="got no tensor with axes"):
            _ = capture(nn.ReLU(), *nothing)
    with pytest.raises(ArgumentError, match="at least one sample"):
        _ = capture(nn.ReLU(), torch.zeros(0, 3))


def test_a_wrong_example_says_so():
    with pytest.raises(CaptureError, match=r"one sample of shape \(1, 4\): .*cannot be multiplied"):
        _ = capture(nn.Linear(3, 2), torch.randn(2, 4))


# torch 2.11 warns about a buffer of its own when it loads a program.
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_exported_programs_are_accepted():
    module, example = ZOO["cnn_batch_norm"]()
    program = torch.export.export(module, (example[:1],))
    file = io.BytesIO()
    torch.export.save(program, file)
    _ = file.seek(0)
    network = capture(torch.export.load(file))
    assert torch.allclose(network(example), module(example), rtol=0, atol=1e-12)
    assert capture(program, example).source == network.source


def test_programs_for_many_samples_are_refused():
    module, example = ZOO["mlp"]()
    with pytest.raises(CaptureError, match=r"shape \(2, 6\); export it again with a batch of one"):
        _ = capture(torch.export.export(module, (example,)))
    dynamic = {"input": {0: torch.export.Dim("batch")}}
    with pytest.raises(CaptureError, match="dynamic shapes"):
        _ = capture(torch.export.export(module, (example,), dynamic_shapes=dynamic))


def test_float32_models_keep_their_dtype_and_work_in_another():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    network = capture(module, torch.randn(2, 3))
    assert all(t.dtype == torch.float32 for t in network.tensors())
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = network.to(torch.float64)(x)
    module = module.double()
    assert torch.allclose(expected, module(x), rtol=0, atol=1e-14)


class MakesConstants(nn.Module):
    """What torch.export writes `detach_` for: a tensor made in forward, and one that is cut off in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.inner(x * torch.tensor([0.5, 2.0]))
        mixed.detach_()
        return mixed.relu() + mixed


def test_constants_made_on_the_way_need_no_second_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(canonical, "_decompose", refused)
    model, x = MakesConstants(), torch.randn(4, 2)
    network = capture(model, x[:1])
    torch.testing.assert_close(network(x), model(x).detach())
    with pytest.raises(AssertionError, match="traced again"):
        capture(nn.ReLU(inplace=True), x[:1])


class Coarse(nn.Module):
    """Numbers of eight bits on the way."""

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float8_e4m3fn).float() * 2


def test_numbers_of_eight_bits_are_steps_and_refused() -> None:
    with pytest.raises(CaptureError, match=r"rounds to torch\.float8_e4m3fn, which jumps"):
        capture(Coarse(), torch.zeros(1, 3))
