"""Weights that are kept in evaluation are, at every use, what computing them anew would give, bit by bit."""

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from lipkit import nn as lnn
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.constrained import Constrained


def build(**options: Any) -> lnn.Linear:
    torch.manual_seed(0)
    layer = lnn.Linear(8, 8, bias=False, **options)
    with torch.no_grad():
        raw_of(layer).add_(0.2 * torch.randn(8, 8))
    return layer.eval()


def constraint_of(layer: nn.Module) -> Constrained:
    found = layer.get_submodule("parametrizations.weight.0")
    assert isinstance(found, Constrained)
    return found


def raw_of(layer: nn.Module) -> nn.Parameter:
    return layer.get_parameter("parametrizations.weight.original")


def anew(layer: lnn.Linear) -> Tensor:
    """The weight of a copy, which holds nothing."""
    return copy.deepcopy(layer).weight


class Calls:
    """How often a layer computes its weight, counted by the method itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        compute = Constrained.compute

        def counted(constraint: Constrained, *parameters: Tensor) -> Tensor:
            self.count += 1
            return compute(constraint, *parameters)

        monkeypatch.setattr(Constrained, "compute", counted)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_a_weight_is_computed_once_in_evaluation(block: Callable[[], Any], calls: Calls) -> None:
    layer = build()
    calls.count = 0
    with block():
        first = layer.weight
        assert layer.weight is first
    assert calls.count == 1
    with block():
        assert torch.equal(first, anew(layer))


def test_parameters_that_ask_for_no_gradient_are_enough(calls: Calls) -> None:
    layer, x = build().requires_grad_(False), torch.randn(3, 8, requires_grad=True)
    calls.count = 0
    for _ in range(3):
        layer(x).sum().backward()
    assert calls.count == 1


def test_gradients_and_training_compute_anew(calls: Calls) -> None:
    layer = build()
    calls.count = 0
    with torch.no_grad():
        _ = layer.weight
    for training in (False, True):
        layer.train(training)
        assert layer.weight.requires_grad
    assert not constraint_of(layer).kept.results
    with torch.no_grad():
        assert layer.weight is not layer.weight
    assert calls.count == 5
    layer.eval().weight.sum().backward()
    assert raw_of(layer).grad is not None


def _step(build_optimizer: Callable[..., torch.optim.Optimizer]) -> Callable[[lnn.Linear], object]:
    def write(layer: lnn.Linear) -> None:
        raw_of(layer).grad = torch.randn(8, 8)
        build_optimizer([raw_of(layer)], lr=0.1).step()

    return write


def _numpy(layer: lnn.Linear) -> None:
    raw_of(layer).data.numpy()[3, 4] += 0.5


def _new_method(layer: lnn.Linear) -> None:
    constraint_of(layer).method = lnn.QR()


def _new_parametrization(layer: lnn.Linear) -> None:
    parametrize.remove_parametrizations(layer, "weight")
    lnn.parametrize(layer, "weight", lnn.Cayley())
    layer.eval()
    raw_of(layer).data.add_(0.1)


def _new_data(layer: lnn.Linear) -> None:
    raw_of(layer).data = torch.randn(8, 8)


def _other_parameter(layer: lnn.Linear) -> None:
    layer.get_submodule("parametrizations.weight").original = nn.Parameter(torch.randn(8, 8))


def _load(layer: lnn.Linear) -> None:
    layer.load_state_dict({"parametrizations.weight.original": torch.randn(8, 8)})


WRITES: dict[str, Callable[[lnn.Linear], object]] = {
    "in place": lambda layer: raw_of(layer).add_(0.3),
    "through .data": lambda layer: raw_of(layer).data.mul_(-1.0),
    "one bit": lambda layer: raw_of(layer).data.view(torch.int32)[2, 1].bitwise_xor_(1 << 22),
    "two signs": lambda layer: raw_of(layer).data.view(torch.int32)[:2, 1].bitwise_xor_(-(1 << 31)),
    "two entries exchanged": lambda layer: raw_of(layer).data.copy_(raw_of(layer).data.roll(1)),
    "numpy": _numpy,
    "SGD": _step(torch.optim.SGD),
    "fused Adam": _step(lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True)),
    "load_state_dict": _load,
    "other data": _new_data,
    "other parameter": _other_parameter,
    "other method": _new_method,
    "other parametrization": _new_parametrization,
    "half": lambda layer: layer.half(),
    "bfloat16": lambda layer: layer.bfloat16(),
    "double": lambda layer: layer.double(),
}


@pytest.mark.parametrize("write", WRITES)
def test_changes_are_noticed(write: str) -> None:
    layer = build()
    with torch.no_grad():
        before = layer.weight.clone()
        WRITES[write](layer)
        found = layer.weight
        assert torch.equal(found, anew(layer))
        assert found.dtype == raw_of(layer).dtype
        assert found.dtype != before.dtype or not torch.equal(found, before)
        # And what replaced it is kept in turn.
        assert layer.weight is found


RESULT_WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda weight: weight.mul_(2),
    "through .data": lambda weight: weight.data.view(torch.int32)[0, 0].bitwise_xor_(-(1 << 31)),
    "numpy": lambda weight: weight.numpy().fill(1.0),
    "gradient": lambda weight: weight.requires_grad_(),
    "other data": lambda weight: setattr(weight, "data", 3 * torch.eye(8)),
    "transposed": lambda weight: weight.t_(),
}


@pytest.mark.parametrize("write", RESULT_WRITES)
def test_a_result_that_someone_changed_is_not_used_again(write: str) -> None:
    layer = build()
    with torch.no_grad():
        RESULT_WRITES[write](layer.weight)
        found = layer.weight
        assert torch.equal(found, anew(layer))
        assert not found.requires_grad


def test_a_second_write_back_gives_the_first_weight() -> None:
    layer = build()
    with torch.no_grad():
        before, raw = layer.weight.clone(), raw_of(layer).clone()
        raw_of(layer).zero_()
        _ = layer.weight
        raw_of(layer).copy_(raw)
        assert torch.equal(layer.weight, before)


def test_copies_and_files_hold_nothing() -> None:
    layer = build()
    constraint = constraint_of(layer)
    stored = len(pickle.dumps(constraint))
    with torch.no_grad():
        _ = layer.weight
        assert constraint.kept.results
        assert len(pickle.dumps(constraint)) == stored
        made = copy.deepcopy(layer)
        for one in (constraint_of(made), copy.copy(constraint), pickle.loads(pickle.dumps(constraint))):
            assert not one.kept.results
            assert one.kept is not constraint.kept
        assert layer.state_dict().keys() == {"parametrizations.weight.original"}
        raw_of(made).add_(1.0)
        assert torch.equal(made.weight, anew(made))
        assert torch.equal(layer.weight, anew(layer))


def test_models_saved_without_the_attribute_are_read() -> None:
    constraint = constraint_of(build())
    state = constraint.__getstate__()
    del state["kept"]
    read = Constrained.__new__(Constrained)
    read.__setstate__(state)
    with torch.no_grad():
        assert torch.equal(read.eval()(torch.eye(8)), constraint(torch.eye(8)))


def test_threads_share_what_is_kept(calls: Calls) -> None:
    layer = build()
    calls.count = 0
    found: list[Tensor] = []

    def use() -> None:
        with torch.no_grad():
            found.append(layer.weight)

    use()
    other = threading.Thread(target=use)
    other.start()
    other.join()
    assert found[0] is found[1]
    assert calls.count == 1


def test_a_write_during_the_computation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build()
    compute = Constrained.compute

    def torn(constraint: Constrained, *parameters: Tensor) -> Tensor:
        result = compute(constraint, *parameters)
        parameters[0].data.add_(0.5)
        return result

    monkeypatch.setattr(Constrained, "compute", torn)
    with torch.no_grad():
        _ = layer.weight
    assert not constraint_of(layer).kept.results


def test_inference_tensors_stay_where_they_were_made() -> None:
    layer, x = build().requires_grad_(False), torch.randn(2, 8, requires_grad=True)
    with torch.inference_mode():
        assert layer.weight.is_inference()
    # The gradient of the input saves the weight, which an inference tensor refuses.
    layer(x).sum().backward()
    assert x.grad is not None
    with torch.inference_mode():
        assert layer.weight.is_inference()


def test_parameters_made_in_inference_mode() -> None:
    with torch.inference_mode():
        layer = build()
        assert layer.weight is layer.weight
        raw_of(layer).mul_(-1)
        assert torch.equal(layer.weight, anew(layer))


def test_autocast_has_weights_of_its_own(calls: Calls) -> None:
    layer = build()
    calls.count = 0
    with torch.no_grad():
        for _ in range(2):
            assert layer.weight.dtype == torch.float32
            with torch.autocast("cpu", torch.bfloat16):
                assert layer.weight.dtype == torch.bfloat16
    assert calls.count == 2


def test_settings_count(calls: Calls) -> None:
    layer, threads = build(), torch.get_num_threads()
    calls.count = 0
    with torch.no_grad():
        _ = layer.weight
        torch.set_num_threads(threads + 1)
        try:
            _ = layer.weight
        finally:
            torch.set_num_threads(threads)
    assert calls.count == 2


def test_other_parameters_by_functional_call() -> None:
    layer, x = build(), torch.randn(2, 8)
    other = {"parametrizations.weight.original": torch.randn(8, 8)}
    with torch.no_grad():
        mine = layer(x)
        theirs = functional_call(layer, other, (x,))
        assert not torch.allclose(mine, theirs, atol=1e-3)
        assert torch.equal(layer(x), mine)
        layer.load_state_dict(other)
        assert torch.equal(layer(x), theirs)


# torch loads its own table for forward mode with a function it deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_transforms_see_the_computation() -> None:
    layer = build()
    raw = raw_of(layer).detach()
    stack = torch.stack([raw, -raw])
    name = "parametrizations.weight.original"

    def weight(numbers: Tensor) -> Tensor:
        return functional_call(layer, {name: numbers}, (torch.eye(8),))

    with torch.no_grad():
        plain = layer(torch.eye(8))
        torch.testing.assert_close(torch.func.vmap(weight)(stack), torch.stack([plain, -plain]))
        # Derivatives of transforms, where torch itself records nothing.
        assert float(torch.func.jvp(weight, (raw,), (torch.randn(8, 8),))[1].abs().max()) > 1e-3
        assert float(torch.func.grad(lambda t: weight(t)[0, 1])(raw).abs().max()) > 1e-3
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(raw, torch.randn(8, 8))
            assert forward_ad.unpack_dual(weight(dual)).tangent is not None
        torch.testing.assert_close(layer(torch.eye(8)), plain, rtol=0, atol=0)


def test_modes_see_the_computation() -> None:
    layer = build()
    with torch.no_grad():
        _ = layer.weight
        counted: list[int] = []
        for _ in range(2):
            with FlopCounterMode(display=False) as counter:
                _ = layer.weight
            counted.append(counter.get_total_flops())
        assert counted[0] == counted[1] > 0
        with FakeTensorMode(allow_non_fake_inputs=True):
            _ = layer.weight
        assert torch.equal(layer.weight, anew(layer))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traces_and_exports_keep_the_free_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sizes are tensors while torch.jit traces, which the checks of annotations refuse.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    layer, x = build(), torch.randn(3, 8)
    with torch.no_grad():
        before = layer(x)
        exported = torch.export.export(layer, (x,))
        traced: Any = torch.jit.trace(layer, (x,))
        other = torch.randn(8, 8)
        traced.load_state_dict({"parametrizations.weight.original": other})
        layer.load_state_dict({"parametrizations.weight.original": other})
        # Roundings of float32.
        torch.testing.assert_close(traced(x), layer(x), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(before, layer(x), atol=1e-3)
        assert any("bmm" in str(node.target) for node in exported.graph.nodes)


def _in_child(layer: lnn.Linear, queue: Any) -> None:
    with torch.no_grad():
        same = torch.equal(layer.weight, anew(layer))
        raw_of(layer).data.mul_(-1)
        queue.put((same, torch.equal(layer.weight, anew(layer))))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_notice_their_own_changes() -> None:
    layer = build()
    with torch.no_grad():
        before = layer.weight.clone()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(layer, queue))
    child.start()
    assert queue.get(timeout=60) == (True, True)
    child.join(60)
    with torch.no_grad():
        assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("kind", [lnn.SLL, lnn.CPL], ids=["SLL", "CPL"])
def test_coefficients_of_residual_layers_are_kept_too(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layer, x = kind(6).eval(), torch.randn(3, 6)
    (part,) = [one for one in layer.modules() if isinstance(one, Computed)]
    with torch.no_grad():
        first = layer(x)
        assert part.kept.results
        assert torch.equal(layer(x), first)
        for parameter in layer.parameters():
            parameter.data.mul_(1.5)
        assert torch.equal(layer(x), copy.deepcopy(layer)(x))
        assert not torch.equal(layer(x), first)


def test_layers_that_share_numbers_in_other_layouts() -> None:
    constraint = constraint_of(build())
    raw = torch.randn(8, 8)
    with torch.no_grad():
        straight = constraint(raw)
        turned = constraint(raw.mT.contiguous().mT)
        assert turned is not straight
        assert constraint(raw.mT) is not straight
        # A part of a larger tensor, and one of a single entry.
        assert torch.equal(constraint(torch.cat([raw, raw])[8:]), straight)


def test_what_another_thread_writes_and_takes_back_while_a_weight_is_computed_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = build().eval()
    raw, expected, compute = raw_of(layer), anew(layer), Constrained.compute
    first, second = raw.detach().clone(), torch.randn_like(raw)

    def interrupted(self: Constrained, *parameters: Tensor) -> Tensor:
        raw.data.copy_(second)
        found = compute(self, *parameters)
        raw.data.copy_(first)
        return found

    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(Constrained, "compute", interrupted)
            _ = layer.weight
        assert torch.equal(layer.weight, expected)
