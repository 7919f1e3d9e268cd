"""The profiler in loops that are not the usual one: closures, scalers, axes in another order, layers left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lipkit import analysis

RATE, DECAY, COUNT = 0.1, 0.2, 12
LABELS = torch.arange(COUNT) % 3


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def inputs(*shape: int) -> Tensor:
    return torch.randn(COUNT, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), LABELS)


def profile(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    step: Callable[[], object] | None = None,
    steps: int = 3,
) -> analysis.History:
    def usual() -> None:
        optimizer.zero_grad()
        loss(model, x).backward()
        optimizer.step()

    with analysis.Profiler(model, optimizer, x[:1], every=1) as found:
        for _ in range(steps):
            (step or usual)()
    return found.history


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), RATE, weight_decay=DECAY, **settings)


@pytest.mark.parametrize("forget", [False, True])
def test_a_closure_is_booked_as_the_loop_that_it_replaces(forget: bool):
    x, model = inputs(6), network()
    expected = profile(model, sgd(model), x)
    model = network()
    optimizer = sgd(model)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model, x)
        value.backward()
        return value

    def step() -> None:
        optimizer.step(closure)  # pyright: ignore[reportArgumentType]
        if forget:
            optimizer.zero_grad()

    found = profile(model, optimizer, x, step)
    assert found.refused == expected.refused == {}
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert one.kappa is not None
        assert other.kappa is not None
        for name in ("norm", "drift", "curvature", "decay", "rest", "kappa", "diffusion"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_gradient_has_no_noise_terms(fused: bool):
    model = network()
    optimizer = sgd(model, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(loss(model, inputs(6))).backward()
        scaler.step(optimizer)
        scaler.update()

    history = profile(model, optimizer, inputs(6), step)
    # A fused step takes the scale out of the gradients itself, after the hooks before the step.
    assert "scaled" in history.refused["expected"]
    assert all(layer.kappa is None for layer in history.layers)


def test_a_step_that_the_scaler_skips_does_not_decay():
    model = network()
    optimizer = sgd(model, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(loss(model, inputs(6)) * torch.inf).backward()
        scaler.step(optimizer)

    history = profile(model, optimizer, inputs(6), step, steps=1)
    for layer in history.layers:
        assert layer.norm[0] == layer.norm[1]
        assert layer.drift.tolist() == layer.decay.tolist() == [0.0]


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_decay_before_the_step_is_booked(name: str):
    make = getattr(torch.optim, name, None)
    if make is None:
        pytest.skip(f"this torch has no {name}")
    layer = nn.Linear(6, 3, bias=False).double()
    optimizer = make(layer.parameters(), lr=0.01, weight_decay=DECAY)

    def step() -> None:
        layer.weight.grad = torch.zeros_like(layer.weight)
        optimizer.step()

    history = profile(layer, optimizer, inputs(6), step)
    assert "decay" not in history.refused
    (found,) = history.layers
    assert float(found.decay.sum()) == pytest.approx(-3 * 0.01 * DECAY)
    # Nothing else moves the weight; Adafactor divides a gradient of zero by its least size.
    assert float(found.drift.abs().sum()) < 1e-12


def test_decay_of_parameters_behind_a_weight_is_named():
    model = network()
    parametrizations.weight_norm(model[0])
    assert "'0' is computed from other parameters" in profile(model, sgd(model), inputs(6)).refused["decay"]
    plain = torch.optim.SGD(model.parameters(), RATE)
    assert "decay" not in profile(model, plain, inputs(6)).refused


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_that_the_optimizer_does_not_move_has_no_noise(frozen: bool):
    model = network()
    model[0].requires_grad_(not frozen)
    # Gradients of the first layer pile up, if it has any: nobody clears them.
    history = profile(model, torch.optim.SGD(model[2].parameters(), RATE), inputs(6))
    assert history.refused == {}
    still, moved = history.layers
    assert still.kappa is not None
    assert moved.kappa is not None
    assert still.kappa.tolist() == still.drift.tolist() == [0.0] * 3
    assert bool((moved.kappa > 0).all())
    assert analysis.forecast(history).curvature > 0


def test_a_step_that_nobody_could_hear_is_named():
    model, x = network(), inputs(6)
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    def step() -> None:
        loss(model, x).backward()
        optimizer.step()

    # Whoever clears gradients within the step clears them before the profiler looks.
    optimizer.register_step_post_hook(lambda *_: optimizer.zero_grad())
    history = profile(model, optimizer, x, step)
    assert "no backward pass of it was heard" in history.refused["expected"]
    assert history.expected is None


class Folded(nn.Module):
    """Positions of a sample in the first axis of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.each(x.reshape(-1, 4)).tanh()
        return self.head(rows.reshape(*x.shape[:2], 6).mean(1))


class Turned(Folded):
    """Positions first, samples second."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x.transpose(0, 1)).tanh().mean(0))


class Mixing(Folded):
    """A sample sees the others."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.each(x).tanh().mean(1)
        return self.head(rows + rows.mean(0))


@pytest.mark.parametrize(
    ("make", "positions", "reason"),
    [
        (Turned, 5, "sees 5 rows and the model's output has 12"),
        (Turned, COUNT, "not that of the samples"),
        (Mixing, 5, "samples mix"),
    ],
)
def test_rows_that_are_no_samples_are_named(make: type[nn.Module], positions: int, reason: str):
    torch.manual_seed(0)
    model, x = make().double(), inputs(positions, 4)
    history = profile(model, torch.optim.SGD(model.parameters(), RATE), x)
    assert reason in history.refused["expected"]
    assert all(layer.kappa is None for layer in history.layers)


def test_positions_in_the_first_axis_are_heard_by_signs():
    torch.manual_seed(0)
    # One offset for all positions of a sample: taking positions for samples would halve the terms at least.
    model, x = Folded().double(), inputs(5, 4) + 3 * inputs(1, 4)
    weight = model.each.weight.detach().clone()
    rows = [
        torch.autograd.grad(nn.functional.cross_entropy(model(x[i : i + 1]), LABELS[i : i + 1]), model.each.weight)[0]
        for i in range(COUNT)
    ]
    gradients = torch.stack(rows)
    hessian = analysis.singular_value_hessian(weight)
    share = RATE / (COUNT * (COUNT - 1))
    exact = share * float(hessian.form(gradients - gradients.mean(0)).sum()) / (2 * hessian.triplet()[0])
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with analysis.Profiler(model, optimizer, x[:1], every=1, probes=400) as found:
        loss(model, x).backward()
        optimizer.step()
    assert found.history.refused == {}
    kappa = found.history.layers[0].kappa
    assert kappa is not None
    # One probe deviates by about its own size, so the mean of 400 by 5 %; this is five of these.
    assert float(kappa[0]) == pytest.approx(exact, rel=0.25)


@pytest.mark.parametrize("count", [2, 8])
def test_gradients_in_half_precision_are_heard(count: int):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    x = torch.randn(count, 1, 8, 8)
    with analysis.Profiler(model, optimizer, x[:1], every=1) as found:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                value = nn.functional.cross_entropy(model(x), LABELS[:count])
            value.backward()
            optimizer.step()
    # Its gradients of weights are summed in bfloat16, whose roundings are 1/128 of each term.
    assert found.history.refused == {}


def test_a_layer_that_joins_the_optimizer_later_is_booked_from_then_on():
    model, x = network(), inputs(6)
    optimizer = torch.optim.SGD(model[2].parameters(), RATE)
    steps = iter(range(4))

    def step() -> None:
        if next(steps) == 2:
            optimizer.add_param_group({"params": list(model[0].parameters()), "weight_decay": DECAY})
        model.zero_grad()
        loss(model, x).backward()
        optimizer.step()

    history = profile(model, optimizer, x, step, steps=4)
    assert history.refused == {}
    first = history.layers[0]
    assert first.kappa is not None
    assert first.decay.tolist() == pytest.approx([0.0, 0.0, -RATE * DECAY, -RATE * DECAY])
    assert (first.kappa > 0).tolist() == [False, False, True, True]


class Wrapped(nn.Module):
    """A model that gives its result in a tuple, in a mapping, or beside another tensor."""

    def __init__(self, inner: nn.Module, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = inner, kind

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        return {"tuple": (y,), "mapping": {"logits": y}, "two": (y.exp(), y)}[self.kind]


def wrapped_loss(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x)
    return nn.functional.cross_entropy(found["logits"] if isinstance(found, dict) else found[-1], LABELS)


@pytest.mark.parametrize("kind", ["tuple", "mapping", "two"])
def test_rows_are_checked_in_whatever_a_model_gives(kind: str):
    def history(inner: nn.Module, x: Tensor) -> analysis.History:
        model = Wrapped(inner, kind)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        with analysis.Profiler(model, optimizer, x[:1], every=1) as found:
            optimizer.zero_grad()
            wrapped_loss(model, x).backward()
            optimizer.step()
        return found.history

    torch.manual_seed(0)
    wrong = history(Turned().double(), inputs(COUNT, 4))
    assert "not that of the samples" in wrong.refused["expected"]
    right = history(network(), inputs(6))
    assert "expected" not in right.refused
    model = network()
    expected = profile(model, torch.optim.SGD(model.parameters(), RATE), inputs(6), steps=1)
    for one, other in zip(right.layers, expected.layers, strict=True):
        assert one.kappa is not None
        assert other.kappa is not None
        assert one.kappa.tolist() == pytest.approx(other.kappa.tolist(), rel=1e-12)


def test_layers_that_are_heard_by_signs_may_give_a_tuple():
    torch.manual_seed(0)
    model, x = Wrapped(Folded(), "tuple").double(), inputs(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with analysis.Profiler(model, optimizer, x[:1], every=1) as found:
        wrapped_loss(model, x).backward()
        optimizer.step()
    assert "expected" not in found.history.refused
    assert all(layer.kappa is not None and float(layer.kappa[0]) > 0 for layer in found.history.layers)


def test_two_outputs_in_the_loss_are_named():
    model, x = Wrapped(network(), "two"), inputs(6)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with analysis.Profiler(model, optimizer, x[:1], every=1) as found:
        first, second = model(x)
        (first.mean() + second.square().mean()).backward()
        optimizer.step()
    # The first output is computed from the second, so its gradient is not all of it.
    assert "several outputs" in found.history.refused["expected"]


@pytest.mark.parametrize("method", [parametrizations.spectral_norm, parametrizations.weight_norm])
@pytest.mark.parametrize("reading", [analysis.AsMatrix(), analysis.AsOperator()])
def test_weights_that_move_when_they_are_read_are_left_alone(method: Any, reading: Any):
    ends: list[list[Tensor]] = []
    for watched in (False, True):
        model = network()
        method(model[0])
        optimizer = sgd(model)
        if watched:
            with analysis.Profiler(model, optimizer, inputs(6), every=2, convolutions=reading) as found:
                train(model, optimizer)
            assert found.history.steps.tolist() == [0, 2, 4, 5]
        else:
            train(model, optimizer)
        ends.append(list(model.state_dict().values()))
    # Buffers too: spectral_norm iterates whenever its weight is computed in training mode.
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        loss(model, inputs(6)).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_weight_that_the_next_forward_pass_computes_is_named():
    model = network()
    nn.utils.weight_norm(model[0])
    history = profile(model, sgd(model), inputs(6))
    assert "The weight of 0 is computed by a hook before each forward pass" in history.refused["drift"]
    first, second = history.layers
    assert first.drift.tolist() == [0.0] * 3
    assert float(first.rest.abs().sum()) > 1e-4
    assert float(second.rest.abs().sum()) < 1e-3
    plain = network()
    assert "drift" not in profile(plain, sgd(plain), inputs(6)).refused
