"""The profiler: its trackers against decompositions along real trainings, its books, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis, spectral_norm
from lipkit.errors import ArgumentError, NonFiniteError

SGD, AdamW = torch.optim.SGD, torch.optim.AdamW


def network(seed: int = 0) -> nn.Sequential:
    """The multilayer perceptron 20-30-30-5."""
    torch.manual_seed(seed)
    layers = [nn.Linear(20, 30, bias=False), nn.Linear(30, 30, bias=False), nn.Linear(30, 5, bias=False)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=(2 / layer.in_features) ** 0.5)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).double()


def batches(size: int, count: int, seed: int = 0, spread: float = 1.5) -> list[tuple[Tensor, Tensor]]:
    """Batches of Gaussian clusters around five centres."""
    draws = torch.Generator().manual_seed(seed)
    centres = spread * torch.randn(5, 20, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 5, (count, size), generator=draws)
    noise = torch.randn(count, size, 20, generator=draws, dtype=torch.float64)
    return [(centres[y] + e, y) for y, e in zip(labels, noise, strict=True)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def profile(
    make: Callable[..., torch.optim.Optimizer],
    size: int,
    steps: int,
    every: int = 1,
    seed: int = 0,
    spread: float = 1.5,
    **settings: Any,
) -> analysis.History:
    model, data = network(seed), batches(size, steps, seed, spread)
    optimizer = make(model.parameters(), **settings)
    with analysis.Profiler(model, optimizer, data[0][0][:1], every=every) as profile:
        train(model, optimizer, data)
    return profile.history


def misses(history: analysis.History) -> tuple[float, float, float]:
    """How far the realised and the expected tracker and drift alone end from the truth."""
    assert history.expected is not None
    truth = float(history.log_constant[-1])
    drift = float(history.log_constant[0]) + sum(float((one.drift + one.decay).sum()) for one in history.layers)
    return abs(float(history.realised[-1]) - truth), abs(float(history.expected[-1]) - truth), abs(drift - truth)


def assert_books_close(history: analysis.History) -> None:
    for layer in history.layers:
        booked = layer.drift + layer.curvature + layer.decay + layer.rest
        # One rounding for each of the four terms.
        torch.testing.assert_close(booked, layer.norm.log().diff(), rtol=0, atol=1e-14)
    rest = sum(layer.rest.sum() for layer in history.layers)
    torch.testing.assert_close(history.log_constant[-1] - history.realised[-1], rest, rtol=0, atol=1e-10)


@pytest.mark.train
def test_trackers_at_a_large_rate_with_small_batches():
    # Limits that four seeds keep, of data that cannot be separated; with more steps outside of the radius they do not.
    realised, expected, drift = misses(profile(SGD, 16, 600, lr=0.1, seed=1, spread=1.0))
    assert realised < 5e-3
    assert expected < 3e-2
    assert drift > 2 * expected


@pytest.mark.train
def test_trackers_at_a_small_rate_with_large_batches():
    realised, expected, _ = misses(profile(SGD, 64, 400, lr=0.01))
    assert realised < 1e-5
    assert expected < 1e-3


@pytest.mark.train
@pytest.mark.parametrize(
    ("make", "settings", "limit"),
    [(SGD, {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}, 1e-3), (AdamW, {"lr": 3e-3}, 1e-4)],
)
def test_the_realised_tracker_holds_for_any_optimizer(make: Any, settings: dict[str, Any], limit: float):
    history = profile(make, 16, 300, **settings)
    moved = float(history.log_constant[-1] - history.log_constant[0])
    assert abs(float(history.realised[-1] - history.log_constant[-1])) < min(limit, 0.02 * abs(moved))
    assert history.expected is None
    assert history.sampled is None
    assert "plain SGD" in history.refused["expected"]
    assert_books_close(history)


def test_the_books_close_and_the_constant_is_that_of_decompositions():
    model, data = network(), batches(16, 12)
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    truth = [sum(torch.linalg.matrix_norm(p, 2).log().item() for p in model.parameters())]
    with analysis.Profiler(model, optimizer, data[0][0], every=5) as profile:
        for batch in data:
            train(model, optimizer, [batch])
            truth.append(sum(torch.linalg.matrix_norm(p, 2).log().item() for p in model.parameters()))
    history = profile.history
    assert history.steps.tolist() == [0, 5, 10, 12]
    torch.testing.assert_close(history.log_constant, torch.tensor(truth, dtype=torch.float64)[[0, 5, 10, 12]])
    assert history.realised[0] == history.log_constant[0]
    assert_books_close(history)
    for layer in history.layers:
        # log sigma of (1 - rate decay) W, to first order, for each step of an interval.
        torch.testing.assert_close(layer.decay, -0.001 * history.steps.diff().double())
    assert history.refused == {}


def test_decay_alone_is_booked_as_decay():
    choices: list[tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = [
        (AdamW, {}),
        (SGD, {}),
        (SGD, {"momentum": 0.9}),
        (SGD, {"momentum": 0.9, "nesterov": True}),
    ]
    for make, settings in choices:
        layer = nn.Linear(4, 3, bias=False).double()
        optimizer = make(layer.parameters(), lr=1e-3, weight_decay=0.1, **settings)
        with analysis.Profiler(layer, optimizer, torch.zeros(1, 4).double(), every=1) as profile:
            for _ in range(30):
                layer.weight.grad = torch.zeros_like(layer.weight)
                optimizer.step()
        found = profile.history.layers[0]
        moved = float(found.norm.log()[-1] - found.norm.log()[0])
        assert moved < -2e-3
        # With momentum, weights of earlier steps are taken for equal to this one: they differ by 1e-3 each.
        assert float(found.decay.sum()) == pytest.approx(moved, rel=1e-2)
        assert float(found.drift.abs().sum()) < 1e-2 * abs(moved)


def test_adam_cannot_tell_decay_from_drift():
    history = profile(torch.optim.Adam, 8, 3, lr=1e-3, weight_decay=0.1)
    assert "Adam scales weight decay" in history.refused["decay"]
    assert not any(layer.decay.any() for layer in history.layers)


def test_a_rate_of_zero_moves_nothing():
    history = profile(SGD, 8, 5, every=2, lr=0.0)
    assert history.expected is not None
    assert history.sampled is not None
    for row in (history.realised, history.expected, history.sampled, history.log_constant):
        assert row.unique().numel() == 1
    for layer in history.layers:
        for cause in (layer.drift, layer.curvature, layer.decay, layer.rest, layer.crossings):
            assert not cause.any()


@pytest.mark.parametrize("every", [1, 3])
def test_training_is_the_same_with_and_without(every: int):
    results: list[list[Tensor]] = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3))
        optimizer = SGD(model.parameters(), lr=0.1)
        x, y = torch.randn(6, 1, 8, 8), torch.arange(6) % 3
        if watched:
            with analysis.Profiler(model, optimizer, x, every=every) as profile:
                train(model, optimizer, [(x, y)] * 5)
            assert profile.history.refused == {}
        else:
            train(model, optimizer, [(x, y)] * 5)
        results.append([*(p.detach() for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    on_layers = sum(len(module._forward_hooks) for module in model.modules())
    on_layers += len(torch.nn.modules.module._global_forward_hooks)
    return on_layers + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def test_hooks_leave_with_the_block_also_after_an_error():
    model, data = network(), batches(4, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    profile = analysis.Profiler(model, optimizer, data[0][0])
    with pytest.raises(ArgumentError, match="no history yet"):
        _ = profile.history
    assert hooks(model, optimizer) == 0
    with profile:
        train(model, optimizer, data)
        assert hooks(model, optimizer) == 3
        with pytest.raises(ArgumentError, match="running already"):
            profile.__enter__()
    assert hooks(model, optimizer) == 0
    with pytest.raises(KeyError), profile:
        raise KeyError
    assert hooks(model, optimizer) == 0
    assert profile.history.steps.tolist() == [0]


def test_a_step_without_a_backward_pass():
    model, data = network(), batches(8, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, data[0][0], every=1) as profile:
        optimizer.step()
        train(model, optimizer, data[:1])
        # The gradient of the step before is used again: its noise holds.
        optimizer.step()
    history = profile.history
    assert history.refused == {}
    assert history.expected is not None
    assert history.expected[1] == history.expected[0]
    assert history.expected[2] != history.expected[1]
    assert_books_close(history)


def test_a_change_that_no_step_made_is_rest():
    model, data = network(), batches(8, 1)
    optimizer = SGD(model.parameters(), lr=0.0)
    with analysis.Profiler(model, optimizer, data[0][0], every=1) as profile, torch.no_grad():
        next(model.parameters()).mul_(2.0)
        optimizer.step()
    first, second, _ = profile.history.layers
    assert float(first.rest[0]) == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-6)
    assert not second.rest.any()


def test_nan_is_refused_by_name_and_the_history_stands():
    model, data = network(), batches(8, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    profile = analysis.Profiler(model, optimizer, data[0][0], every=1)

    def diverge() -> None:
        with profile:
            train(model, optimizer, data)
            middle = list(model.parameters())[1]
            middle.grad = torch.full_like(middle, float("nan"))
            optimizer.step()

    with pytest.raises(NonFiniteError, match="'2' has NaN or infinite weights after 2 steps"):
        diverge()
    assert profile.history.steps.tolist() == [0, 1]
    assert all(layer.norm.numel() == 2 for layer in profile.history.layers)
    assert hooks(model, optimizer) == 0


def test_batch_normalisation_in_training_is_named():
    model = nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).double()
    data = batches(8, 2)
    for mode, refused in ((True, True), (False, False)):
        model.train(mode)
        optimizer = SGD(model.parameters(), lr=0.1)
        with analysis.Profiler(model, optimizer, data[0][0]) as profile:
            train(model, optimizer, data)
        assert (profile.history.expected is None) == refused
        assert ("batch normalisation '1'" in profile.history.refused.get("sampled", "")) == refused


def clipped(model: nn.Module, x: Tensor, y: Tensor) -> None:
    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def twice(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for _ in range(2):
        nn.functional.cross_entropy(model(x), y).backward()


def single(model: nn.Module, x: Tensor, y: Tensor) -> None:
    nn.functional.cross_entropy(model(x[:1]), y[:1]).backward()


@pytest.mark.parametrize(
    ("backward", "reason"), [(clipped, "gradient changed"), (twice, "2 backward passes"), (single, "one sample")]
)
def test_gradients_that_the_model_does_not_describe_are_named(backward: Callable[..., None], reason: str):
    model, ((x, y),) = network(), batches(8, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, x) as profile:
        backward(model, x, y)
        optimizer.step()
    assert profile.history.expected is None
    assert reason in profile.history.refused["expected"]
    assert_books_close(profile.history)


def test_a_double_value_on_the_torus_has_derivatives():
    torch.manual_seed(2)
    model = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", bias=False).double()
    x = torch.randn(4, 2, 7, 7, dtype=torch.float64)
    optimizer = SGD(model.parameters(), lr=0.01)
    with analysis.Profiler(model, optimizer, x, every=1, convolutions=analysis.AsOperator()) as profile:
        truth = [spectral_norm(model, (2, 7, 7)).value.item()]
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().mul(20).backward()
            optimizer.step()
            truth.append(spectral_norm(model, (2, 7, 7)).value.item())
    history = profile.history
    (layer,) = history.layers
    assert layer.norm.tolist() == pytest.approx(truth, rel=1e-9)
    assert layer.gap is None
    # Third order of a step of a few per cent, while first order alone is wrong in its square.
    assert float(layer.drift.abs().min()) > 1e-3
    assert bool((layer.rest.abs() < 0.1 * layer.curvature.abs()).all())
    assert history.refused == {}
    assert layer.kappa is not None
    assert_books_close(history)


def test_bad_input_is_refused():
    model = network()
    optimizer, x = SGD(model.parameters(), lr=0.1), torch.zeros(1, 20).double()
    with pytest.raises(ArgumentError, match="every=0"):
        analysis.Profiler(model, optimizer, x, every=0)
    nn.init.zeros_(list(model.parameters())[-1])
    with pytest.raises(ArgumentError, match="'4' is zero after 0 steps"):
        analysis.Profiler(model, optimizer, x).__enter__()


def test_what_has_no_gradient_does_not_decay():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1)
    x, y = torch.randn(20, 5), torch.arange(20) % 3
    with analysis.Profiler(model, optimizer, x[:1], every=5) as profile:
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    frozen, trained = profile.history.layers
    assert frozen.decay.tolist() == frozen.drift.tolist() == [0.0, 0.0]
    # Ten steps of rate times decay.
    assert float(trained.decay.sum()) == pytest.approx(-0.1)


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ArgumentError, match="holds no parameter of the model"):
        analysis.Profiler(nn.Linear(3, 2), torch.optim.SGD(nn.Linear(3, 2).parameters(), 0.1), torch.zeros(1, 3))
