"""Networks captured without gradients: the same numbers, weights computed once, nothing left behind."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import DAG
from lipkit.bounds.lipschitz import network_of
from lipkit.certify import Forward
from lipkit.errors import CaptureError
from lipkit.nn.core.computed import Computed
from lipkit.trace.capture import capture


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(lnn.SLLConv(3, 3, 4, steps=2), nn.Flatten(), lnn.Linear(48, 8, method=lnn.Bjorck()), nn.ReLU())


def _count(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which computed weights are computed from now on, in order."""
    calls: list[str] = []
    for part in model.modules():
        if isinstance(part, Computed):

            def compute(*parameters: torch.Tensor, part: Computed = part, own: object = part.compute) -> torch.Tensor:
                calls.append(type(part).__name__)
                return own(*parameters)  # type: ignore[operator]

            monkeypatch.setattr(part, "compute", compute)
    return calls


def test_weights_are_computed_once_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    calls = _count(model, monkeypatch)
    with torch.no_grad():
        network_of(model, torch.randn(2, 3, 4, 4))
    assert sorted(calls) == sorted(type(part).__name__ for part in model.modules() if isinstance(part, Computed))
    assert len(calls) == 2


def test_the_network_computes_what_the_model_does_and_has_its_constant() -> None:
    model, x = _model(), torch.randn(5, 3, 4, 4)
    with torch.no_grad():
        quick = network_of(model, x)
        plain = capture(model, x)
        # Traced, the same weights are computed by other kernels: some roundings of float32.
        torch.testing.assert_close(DAG()(quick).log_value, DAG()(plain).log_value, rtol=0, atol=1e-6)
        torch.testing.assert_close(quick(x), model.eval()(x), rtol=1e-5, atol=1e-6)  # a few roundings of float32


def test_with_gradients_the_constant_reaches_the_free_numbers() -> None:
    free = nn.Linear(4, 4)
    bound = DAG()(network_of(nn.Sequential(free, lnn.Linear(4, 3)), torch.randn(1, 4)))
    (gradient,) = torch.autograd.grad(bound.value, free.weight)
    assert bool(gradient.abs().sum() > 0)


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 7)])
def test_nothing_is_held_afterwards_also_after_an_error(shape: tuple[int, ...]) -> None:
    model = _model()
    with torch.no_grad():
        if shape == (1, 7):
            with pytest.raises(CaptureError):
                network_of(model, torch.randn(shape))
        else:
            network_of(model, torch.randn(shape))
    assert all(part.held is None for part in model.modules() if isinstance(part, Computed))


def test_a_model_that_works_in_place_leaves_the_example_alone() -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2.0)

    x = torch.ones(1, 3)
    with torch.no_grad():
        network_of(nn.Sequential(InPlace(), lnn.Linear(3, 3)), x)
    assert torch.equal(x, torch.ones(1, 3))


class _Refuses(nn.Module):
    """Uses one layer with two sets of free numbers; runs in a program only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = lnn.Linear(6, 3)
        self.second = nn.Parameter(torch.randn(3, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.body(x)
        if not torch.compiler.is_compiling():
            raise RuntimeError("not outside of a program")
        other: dict[str, torch.Tensor] = {"parametrizations.weight.original": self.second}
        return first - functional_call(self.body, other, (x,))


def test_a_model_that_cannot_be_run_holds_no_weights() -> None:
    # Weights held from a run that ended early would stand for the second set too, and the network would be zero.
    torch.manual_seed(0)
    model, x = _Refuses(), torch.randn(1, 6)
    plain = network_of(model, x)
    with torch.no_grad():
        torch.testing.assert_close(network_of(model, x)(x), plain(x), rtol=1e-5, atol=1e-6)  # roundings of float32
        assert float(plain(x).abs().max()) > 0.1


def test_certificates_and_logits_take_the_way_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _model(), torch.randn(1, 3, 4, 4)
    parts = sum(isinstance(part, Computed) for part in model.modules())
    calls = _count(model, monkeypatch)
    paper = lipkit.certificate(model, x, DAG())
    # Once for the capture; whether one sample changes the answer for another is tested with weights of its own.
    assert len(calls) <= 2 * parts
    assert paper.log_lower is not None
    calls.clear()
    assert lipkit.verify(paper, model, x).holds
    assert len(calls) <= 2 * parts
    calls.clear()
    Forward(model, x)
    assert len(calls) == parts


def test_a_certificate_keeps_the_lower_bound_that_lipschitz_finds() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(1, 3)
    bound, paper = lipkit.lipschitz(model, x, DAG()), lipkit.certificate(model, x, DAG())
    assert bound.lower is not None
    assert paper.log_lower == float(bound.lower.log_value)
