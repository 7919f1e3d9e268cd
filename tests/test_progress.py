"""Whoever listens hears of every phase and method in order, and may end the call."""

import pytest
import torch
from torch import nn

import lipkit
from lipkit import Phase, Progress
from lipkit._runtime import report, seconds_left
from lipkit.bounds import DAG, Auto, LipLT, LipSDP, Sampling
from lipkit.errors import NotProvenError
from support.unchecked import unchecked


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def test_phases_and_methods_come_in_order() -> None:
    heard: list[Progress] = []
    bound = lipkit.lipschitz(model(), torch.zeros(1, 4), Auto(budget=1e4), progress=heard.append)
    phases = [step.phase for step in heard]
    assert phases == sorted(phases, key=[Phase.CAPTURE, Phase.BOUND, Phase.LOWER].index)
    assert [type(step.rung) for step in heard] == [type(None), DAG, LipLT, LipSDP, Sampling]
    # Every result was announced.
    assert {part.method for part in bound.parts} <= {
        step.rung for step in heard if isinstance(step.rung, DAG | LipLT | LipSDP)
    }
    left = [step.seconds_left for step in heard if step.phase is Phase.BOUND]
    assert left == sorted(left, reverse=True)
    assert all(0 < seconds <= 1e4 for seconds in left)


def test_a_method_without_budget_is_announced_with_infinite_time() -> None:
    heard: list[Progress] = []
    lipkit.lipschitz(model(), torch.zeros(1, 4), LipLT(), lower=Sampling(2), progress=heard.append)
    assert [step.rung for step in heard[:2]] == [None, LipLT()]
    assert {str(step) for step in heard} == {
        "capturing the model",
        "bounding by LipLT",
        "searching for a lower bound by steepest of 2 points",
    }


@pytest.mark.parametrize("error", [KeyError("mine"), NotProvenError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("phase", Phase)
def test_what_a_listener_raises_passes_unchanged(error: BaseException, phase: Phase) -> None:
    def stop(step: Progress) -> None:
        if step.phase is phase:
            raise error

    own = model().train()
    with pytest.raises(type(error)) as raised:
        lipkit.lipschitz(own, torch.zeros(1, 4), Auto(budget=1e4), progress=stop)
    assert raised.value is error
    # Nothing is left behind: neither the limit, nor the listener, nor the mode of the model.
    assert seconds_left() == float("inf")
    report(phase)
    assert own.training
    assert lipkit.lipschitz(own, torch.zeros(1, 4), Auto(budget=1e4)).kind.certifies


def test_what_cannot_be_called_is_refused_first() -> None:
    with unchecked(), pytest.raises(lipkit.errors.ArgumentError, match="`progress` is a function"):
        lipkit.lipschitz(model(), torch.zeros(1, 4), progress="bar")  # pyright: ignore[reportArgumentType]


def test_a_listener_may_bound_a_model_itself() -> None:
    heard: list[Progress] = []

    def listen(step: Progress) -> None:
        heard.append(step)
        if step.phase is Phase.BOUND:
            lipkit.lipschitz(nn.Linear(2, 2), torch.zeros(1, 2), DAG(), lower=Sampling(2))

    lipkit.lipschitz(model(), torch.zeros(1, 4), DAG(), lower=Sampling(2), progress=listen)
    # What the listener does itself is not reported to it.
    assert [step.phase for step in heard] == [Phase.CAPTURE, Phase.BOUND, Phase.LOWER]
