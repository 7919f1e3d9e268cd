"""Sharpness-aware wrappers: exact at rho 0, the published step otherwise, and optimizers in every other respect."""

import copy
import io
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import ArgumentError
from lipkit.optim import ASAM, SAM
from lipkit.optim._wrapper import Wrapper
from lipkit.optim.sam import SharpnessAware

Build = Callable[[torch.optim.Optimizer], SharpnessAware]


def model_of(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3)).to(dtype)


def data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator, dtype=torch.float64).to(dtype), torch.arange(8) % 3


def closure_of(model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype = torch.float32):
    x, y = data(dtype)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x).float(), y)
        loss.backward()
        return loss

    return closure


BASES = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("build", [lambda b: SAM(b, 0.0), lambda b: ASAM(b, 0.0)], ids=["SAM", "ASAM"])
def test_radius_zero_is_the_base_bit_for_bit(base: str, build: Build) -> None:
    plain, wrapped = model_of(), model_of()
    reference = BASES[base](plain.parameters())
    optimizer = build(BASES[base](wrapped.parameters()))
    for model, own in ((plain, reference), (wrapped, optimizer)):
        torch.manual_seed(5)
        for _ in range(4):
            # The dropout mask is drawn once a step in both.
            own.step(closure_of(model, own))
    for a, b in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert torch.equal(a, b)


def reference_step(
    weights: Sequence[Tensor], loss: Callable[..., Tensor], rho: float, eta: float | None
) -> list[Tensor]:
    """One step of rate 0.1 as the papers write it, on the concatenated vector, in float64."""
    flat = torch.cat([w.flatten() for w in weights]).detach().requires_grad_()
    sizes = [w.numel() for w in weights]

    def value(vector: Tensor) -> Tensor:
        return loss(*[part.reshape(w.shape) for part, w in zip(vector.split(sizes), weights, strict=True)])

    (g,) = torch.autograd.grad(value(flat), [flat])
    t = torch.ones_like(flat) if eta is None else flat.detach().abs() + eta
    moved = (flat.detach() + rho * t * t * g / (t * g).norm()).requires_grad_()
    (at,) = torch.autograd.grad(value(moved), [moved])
    return [p.reshape(w.shape) for p, w in zip((flat.detach() - 0.1 * at).split(sizes), weights, strict=True)]


@pytest.mark.parametrize("eta", [None, 0.0, 0.05])
def test_the_step_is_the_published_one(eta: float | None) -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 4, dtype=torch.float64)), nn.Parameter(torch.randn(3, dtype=torch.float64))]
    x, y = data(torch.float64)

    def loss(w: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(x @ w.mT + b, y)

    expected = reference_step(weights, loss, 0.3, eta)
    base = torch.optim.SGD(weights, lr=0.1)
    optimizer = SAM(base, 0.3) if eta is None else ASAM(base, 0.3, eta)
    values: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(*weights)
        value.backward()
        values.append(float(value.detach()))
        return value

    found = optimizer.step(closure)
    assert all(torch.allclose(w, e, atol=1e-14) for w, e in zip(weights, expected, strict=True))
    # The first evaluation is at the weights themselves, and it is the loss that comes back; the second is higher.
    assert float(found.detach()) == values[0] < values[1]


def test_adaptive_sharpness_does_not_see_rescaling() -> None:
    # f(a, b) = a b: (c a, b/c) is the same function, and the worst loss in the adaptive ball is the same.
    def worst(a: float, b: float) -> float:
        weights = [nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in (a, b)]
        optimizer = ASAM(torch.optim.SGD(weights, lr=0.1), 0.2, 0.0)
        values: list[float] = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = (weights[0] * weights[1] - 1).square()
            value.backward()
            values.append(float(value.detach()))
            return value

        optimizer.step(closure)
        return values[1]

    assert worst(2.0, 3.0) == pytest.approx(worst(20.0, 0.3), rel=1e-12)


def test_groups_have_their_own_radius() -> None:
    model = model_of().eval()
    base = torch.optim.SGD([{"params": model[0].parameters(), "rho": 0.0}, {"params": model[3].parameters()}], lr=0.1)
    optimizer = SAM(base, 0.5)
    seen: list[tuple[Tensor, Tensor]] = []
    inner = closure_of(model, optimizer)

    def closure() -> Tensor:
        seen.append((model[0].weight.detach().clone(), model[3].weight.detach().clone()))
        return inner()

    optimizer.step(closure)
    assert torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][1], seen[1][1])
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "rho": 0.1})
    assert len(base.param_groups) == len(optimizer.param_groups) == 3
    assert base.param_groups[2]["rho"] == 0.1
    with pytest.raises(ArgumentError, match="rho"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "rho": -1.0})
    assert len(optimizer.param_groups) == 3


def test_groups_that_are_not_adaptive() -> None:
    weight = nn.Parameter(torch.tensor([5.0, 0.1], dtype=torch.float64))
    optimizer = ASAM(torch.optim.SGD([weight], lr=0.1), 0.2, adaptive=False)
    seen: list[Tensor] = []

    def closure() -> Tensor:
        seen.append(weight.detach().clone())
        optimizer.zero_grad()
        value = weight.sum()
        value.backward()
        return value

    optimizer.step(closure)
    # A round ball: both entries move alike.
    assert torch.allclose(seen[1] - seen[0], torch.full((2,), 0.2 / math.sqrt(2), dtype=torch.float64))


def test_a_zero_gradient_moves_nothing() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = SAM(torch.optim.SGD([weight], lr=0.1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = 0 * weight.sum()
        value.backward()
        return value

    optimizer.step(closure)
    assert torch.equal(weight.detach(), torch.ones(2))


def test_weights_come_back_when_an_evaluation_fails() -> None:
    model = model_of()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1), 0.5)
    before = [p.detach().clone() for p in model.parameters()]
    inner, calls = closure_of(model, optimizer), []

    def closure() -> Tensor:
        calls.append(0)
        if len(calls) == 2:
            raise RuntimeError("no data")
        return inner()

    with pytest.raises(RuntimeError, match="no data"):
        optimizer.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("build", [SAM, ASAM])
@pytest.mark.parametrize("how", ["state", "deepcopy", "pickle"])
def test_a_run_can_be_taken_up_again(build: Build, how: str) -> None:
    model = model_of().eval()
    optimizer = build(torch.optim.Adam(model.parameters(), lr=0.01))
    for _ in range(3):
        optimizer.step(closure_of(model, optimizer))
    if how == "state":
        other = copy.deepcopy(model)
        again = build(torch.optim.Adam(other.parameters(), lr=0.5))
        stored = io.BytesIO()
        torch.save(optimizer.state_dict(), stored)
        stored.seek(0)
        again.load_state_dict(torch.load(stored))
    elif how == "deepcopy":
        other, again = copy.deepcopy((model, optimizer))
    else:
        other, again = pickle.loads(pickle.dumps((model, optimizer)))
    assert again.param_groups is again.base.param_groups
    assert again.state is again.base.state
    for _ in range(2):
        optimizer.step(closure_of(model, optimizer))
        again.step(closure_of(other, again))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_schedulers_reach_the_base() -> None:
    model = model_of()
    optimizer = SAM(torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        optimizer.step(closure_of(model, optimizer))
        scheduler.step()
    assert optimizer.base.param_groups[0]["lr"] == pytest.approx(0.025)


def test_narrow_weights() -> None:
    model = model_of(torch.bfloat16).eval()
    optimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1), 0.5)
    first = optimizer.step(closure_of(model, optimizer, torch.bfloat16))
    last = [optimizer.step(closure_of(model, optimizer, torch.bfloat16)) for _ in range(20)][-1]
    assert float(last.detach()) < float(first.detach())


def test_it_leaves_a_sharp_minimum() -> None:
    # Two minima of equal depth, a sharp one at -1 and a flat one at +2, started on the slope of the sharp one.
    def loss(w: Tensor) -> Tensor:
        return torch.minimum(20 * (w + 1).square(), 0.5 * (w - 2).square())

    ends: list[float] = []
    for rho in (0.0, 0.8):
        weight = nn.Parameter(torch.tensor(-0.8, dtype=torch.float64))
        optimizer = SAM(torch.optim.SGD([weight], lr=0.02), rho)

        def closure(weight: Tensor = weight, optimizer: SAM = optimizer) -> Tensor:
            optimizer.zero_grad()
            value = loss(weight)
            value.backward()
            return value

        for _ in range(600):
            optimizer.step(closure)
        ends.append(float(weight.detach()))
    assert ends[0] == pytest.approx(-1.0, abs=1e-3)
    # The basins meet where 20 (w + 1)^2 = (w - 2)^2 / 2.
    assert ends[1] > (2 - 40**0.5) / (1 + 40**0.5)


def test_misuse_is_refused() -> None:
    weight = nn.Parameter(torch.ones(2))
    base = torch.optim.SGD([weight], lr=0.1)
    with pytest.raises(ArgumentError, match="closure"):
        SAM(base).step()
    with pytest.raises(ArgumentError, match="rho"):
        SAM(torch.optim.SGD([weight], lr=0.1), -0.1)
    with pytest.raises(ArgumentError, match="eta"):
        ASAM(torch.optim.SGD([weight], lr=0.1), eta=math.nan)
    with pytest.raises(ArgumentError, match="wraps an optimizer"):
        # Without the annotations of SAM, which are checked in tests only.
        Wrapper.__init__(SAM.__new__(SAM), [weight], {"rho": 0.1})


def test_the_state_of_another_optimizer_is_refused_and_changes_nothing():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = SAM(torch.optim.SGD([weight], lr=0.1), rho=0.05)
    with pytest.raises(ArgumentError, match="its groups have no rho, which SAM needs"):
        optimizer.load_state_dict(torch.optim.SGD([weight], lr=0.5).state_dict())
    wrong = copy.deepcopy(optimizer.state_dict())
    wrong["param_groups"][0].update(lr=0.5, rho=math.nan)
    with pytest.raises(ArgumentError, match=r"SAM\.rho must be a finite number >= 0, got nan"):
        optimizer.load_state_dict(wrong)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups is optimizer.base.param_groups
