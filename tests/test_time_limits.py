"""Time limits by a clock of the test's own: what is late stops, what must answer answers, and stays sound."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

import lipkit
from lipkit import _runtime
from lipkit._runtime import no_time_limit, refuse_late, seconds_left, time_limit
from lipkit.bound import Kind
from lipkit.bounds import DAG, Auto, LipLT, Sampling
from lipkit.bounds.lipschitz import network_of
from lipkit.certify import head_pairwise
from lipkit.errors import OutOfTimeError
from lipkit.linops import Dense, of
from lipkit.norms import SVD, AbsoluteSums, Cholesky, InTime, Lanczos, Mixed
from lipkit.trace import Network
from support.unchecked import unchecked


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second whenever somebody looks at it."""
    seconds = itertools.count()
    monkeypatch.setattr(_runtime, "monotonic", lambda: float(next(seconds)))
    return


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4 * 36, 3)).double().eval()


def example() -> torch.Tensor:
    return torch.zeros(1, 2, 6, 6, dtype=torch.float64)


def network() -> Network:
    return network_of(model(), example()).detach()


def steepest_seen() -> float:
    """The largest Jacobian norm of the model at random points, by autograd and a dense decomposition."""
    points = torch.randn(64, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    jacobians = [torch.autograd.functional.jacobian(model(), x[None]).reshape(3, 72) for x in points]  # pyright: ignore[reportArgumentType, reportCallIssue, reportAttributeAccessIssue]
    return max(float(torch.linalg.matrix_norm(jacobian, ord=2)) for jacobian in jacobians)


@pytest.mark.usefixtures("ticking")
def test_blocks_inside_cannot_extend_the_time() -> None:
    assert seconds_left() == math.inf
    with time_limit(10):
        with time_limit(100):
            assert seconds_left() < 10
        with no_time_limit():
            assert seconds_left() == math.inf
            refuse_late()
        with time_limit(-1), pytest.raises(OutOfTimeError, match="give more"):
            refuse_late()
        refuse_late()
    assert seconds_left() == math.inf


def test_norms_stop_when_the_time_is_over() -> None:
    op = of(nn.Conv2d(2, 4, 3, padding=1).double(), (2, 6, 6))
    for norm in (Lanczos(), Mixed(2.0, 2.0)):
        with time_limit(-1), pytest.raises(OutOfTimeError):
            norm.many([op])


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("budget", [0.5, 3.0, 8.0, 20.0, 1e4])
def test_every_budget_gives_an_upper_bound(budget: float) -> None:
    bound = Auto(budget=budget)(network())
    assert bound.kind is Kind.UPPER
    assert bound.value.item() >= steepest_seen()


def test_without_time_norms_have_a_closed_form() -> None:
    bound = Auto(budget=1e-9)(network())
    closed = DAG(AbsoluteSums())(network())
    assert bound.value.item() == closed.value.item()
    assert bound.method == DAG(AbsoluteSums())
    assert "budget of 1e-09 s was over" in bound.note
    assert "sums of absolute values" in str(bound)


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("seconds", [-1.0, 4.0, 12.0])
def test_a_search_without_time_proves_what_it_has(seconds: float) -> None:
    with time_limit(seconds):
        found = Sampling(64)(network())
    assert found.kind is Kind.LOWER
    assert 0 < float(found.value) <= float(LipLT()(network()).value)


def test_a_call_that_is_late_has_no_lower_bound() -> None:
    bound = lipkit.lipschitz(model(), example(), Auto(budget=1e-9))
    assert bound.kind is Kind.UPPER
    assert bound.lower is None
    assert lipkit.lipschitz(model(), example(), Auto(budget=1e4)).lower is not None
    assert lipkit.certificate(model(), example(), Auto(budget=1e-9)).log_lower is None


def test_a_step_that_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    # A second for each multiplication: the product of matrices of side 1100 takes a billion of them.
    monkeypatch.setattr(_runtime, "seconds_per_multiplication", lambda _: 1.0)
    large = Dense(torch.randn(1100, 1100, dtype=torch.float64))
    with time_limit(1e6), pytest.raises(OutOfTimeError, match="The next step takes about"):
        Cholesky()(large)
    with time_limit(1e6):
        Cholesky()(Dense(torch.ones(4, 4, dtype=torch.float64)))


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("seconds", range(1, 40, 6))
def test_layers_without_time_are_measured_by_sums(seconds: int) -> None:
    with time_limit(seconds):
        found = DAG(InTime(SVD()))(network())
    methods = {type(part.method) for part in found.parts}
    assert methods <= {SVD, AbsoluteSums}
    assert found.value.item() >= steepest_seen()
    assert found.value.item() <= DAG(AbsoluteSums())(network()).value.item()


def test_on_a_ball_without_time_the_bound_holds() -> None:
    ball = lipkit.Ball(torch.zeros(2, 6, 6, dtype=torch.float64), 0.5)
    hasty, patient = (Auto(budget=budget)(network(), ball) for budget in (1e-9, 1e4))
    assert hasty.note
    assert not patient.note
    assert hasty.value.item() >= patient.value.item() * (1 - 1e-9)
    below = Sampling(64)(network(), ball)
    assert below.value.item() <= hasty.value.item()


@pytest.mark.slow
def test_the_hash_waits_where_there_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipkit.bounds.lipschitz.hash_seconds", lambda _: math.inf)
    own = model()
    late = lipkit.lipschitz(own, example(), Auto(budget=1e4))
    at_once = lipkit.lipschitz(own, example(), LipLT())
    assert late.subject is not None
    assert at_once.subject is not None
    assert late.subject.network == at_once.subject.network
    late = lipkit.lipschitz(own, example(), Auto(budget=1e4))
    with torch.no_grad():
        next(own.parameters()).add_(1.0)
    assert late.subject is not None
    with pytest.raises(lipkit.errors.ArgumentError, match="changed after"):
        _ = late.subject.network


def test_a_call_without_time_for_a_lower_bound_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipkit.bounds.lipschitz.pass_seconds", lambda _: 1e3)
    bound = lipkit.lipschitz(model(), example(), Auto(budget=1e4))
    assert bound.lower is None
    assert bound.note == "There was no time to search for a lower bound."
    assert str(bound).endswith(bound.note)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, "2"])
def test_no_budget_is_refused_before_anything_runs(budget: Any) -> None:
    with unchecked(), pytest.raises(lipkit.errors.ArgumentError, match=r"Auto\.budget is a number of seconds > 0"):
        Auto(budget=budget)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1e308, math.inf])
def test_a_budget_may_be_as_large_as_a_number_can_be(budget: float):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    found = lipkit.lipschitz(model, torch.zeros(1, 3), Auto(budget=budget))
    assert found.lower is not None
    assert found.note == ""


def test_the_note_names_the_pass_that_did_not_end() -> None:
    bound = Auto(budget=1e-9)(network())
    # The fold that answered, by sums, is another one than the fold that did not end.
    assert str(bound.method) == "fold over the network, fused, norms by sums of absolute values"
    assert str(bound.method) not in bound.note
    assert "inf" not in str(LipLT(budget=math.inf))


def test_constants_of_pairs_say_what_the_budget_cut_short() -> None:
    assert "budget of 1e-09 s was over" in head_pairwise(model(), example(), Auto(budget=1e-9)).note
