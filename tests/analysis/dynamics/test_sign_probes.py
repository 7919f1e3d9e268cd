"""Noise terms by random signs: exact on average over all sign vectors, against gradients of single samples."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.dynamics.noise.process_sums import Processes
from lipkit.analysis.dynamics.noise.sign_probes import SignProbe, probe_gradients
from lipkit.analysis.dynamics.tracked_layers import AsMatrix, AsOperator, Reading, TrackedLayer
from lipkit.linops import materialize
from lipkit.regularizers import layers_of

RATE = 0.01


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.inside(x, x, x, need_weights=False)[0]).mean(1)


class Shared(nn.Module):
    """One layer twice, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.up, self.tied = nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(4, 5)
        self.tied.weight = self.up.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x).tanh()).tanh()
        return self.head((self.up(x) + self.tied(x.tanh())).tanh())


def images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, stride=2, groups=1), nn.Tanh()),
        *(nn.Flatten(), nn.Linear(8, 3)),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Reading]] = {
    "images": (images, (2, 5, 5), AsOperator()),
    "attention": (Attention, (3, 4), AsMatrix()),
    "shared": (Shared, (4,), AsMatrix()),
}


def setting(case: str, count: int) -> tuple[nn.Module, Tensor, Tensor, Reading]:
    make, shape, reading = CASES[case]
    torch.manual_seed(3)
    model = make().double()
    return model, torch.randn(count, *shape, dtype=torch.float64), torch.arange(count) % 3, reading


def stored_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*model.named_parameters(), strict=True)
    rows = [
        torch.autograd.grad(nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), weights)
        for i in range(len(x))
    ]
    return {name: torch.stack(parts) for name, parts in zip(names, zip(*rows, strict=True), strict=True)}


def centred(signs: tuple[float, ...]) -> Tensor:
    weights = torch.tensor(signs, dtype=torch.float64)
    return weights - weights.mean()


def of_layer(layer: TrackedLayer, model: nn.Module, stored: dict[str, Tensor]) -> Tensor:
    """The stored gradients of one layer's weight; projections of attention are rows of a packed weight."""
    rows = {"inside.query": 0, "inside.key": 4, "inside.value": 8}
    if layer.name in rows:
        return stored["inside.in_proj_weight"][:, rows[layer.name] : rows[layer.name] + 4]
    names = {id(p): name for name, p in model.named_parameters()}
    parameter = layer.parameter()
    return stored[names[id(parameter)]]


def exact(layer: TrackedLayer, gradients: Tensor) -> tuple[float, float]:
    """Sum of D^2 sigma[G, G] / (2 sigma) and of (u'G v / sigma)^2, from the whole matrix of the layer."""
    matrix = materialize(layer.operator(layer.weight()))
    moves = torch.stack([materialize(layer.operator(one)) for one in gradients])
    hessian = analysis.singular_value_hessian(matrix)
    value, u, v = hessian.triplet()
    slopes = torch.einsum("m,smn,n->s", u, moves, v) / value
    return float(hessian.form(moves).sum()) / (2 * value), float(slopes.square().sum())


@pytest.mark.parametrize("case", CASES)
def test_the_mean_over_all_signs_is_exact(case: str):
    count = 5
    model, x, y, reading = setting(case, count)
    layers = reading.track(layers_of(model, x))
    stored = stored_gradients(model, x, y)
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    (gradient,) = torch.autograd.grad(loss, output, retain_graph=True)
    parameters = [layer.parameter() for layer in layers]
    rows = [
        probe_gradients(output, gradient, [p for p in parameters if p is not None], centred(signs))
        for signs in itertools.product((-1.0, 1.0), repeat=count)
    ]
    assert all(parameter is not None and parameter.grad is None for parameter in parameters)
    for index, layer in enumerate(layers):
        measured = layer.measure(layer.weight(), 0)
        found = tuple(row[index] for row in rows)
        mean = SignProbe(count, tuple(one for one in found if one is not None)).noise(layer, measured, Processes())
        single = of_layer(layer, model, stored)
        kappa, diffusion = (one / (count * (count - 1)) for one in exact(layer, single - single.mean(0)))
        # Vectors of operators have ten digits; the sums are in float64.
        assert mean.curvature == pytest.approx(kappa, rel=1e-8)
        assert mean.diffusion == pytest.approx(diffusion, rel=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_the_profiler_takes_the_form_of_one_signed_sum(case: str):
    count, seed = 7, 4
    model, x, y, reading = setting(case, count)
    stored = stored_gradients(model, x, y)
    layers = reading.track(layers_of(model, x))
    signs = 2.0 * torch.randint(0, 2, (count,), generator=torch.Generator().manual_seed(seed)) - 1.0
    weights = signs.double() - signs.double().mean()
    expected: dict[str, tuple[float, float]] = {}
    for layer in layers:
        single = of_layer(layer, model, stored)
        signed = torch.einsum("s,s...->...", weights, single)[None]
        # The head of Shared and Attention is a matrix that is used once: it is heard without signs.
        plain = isinstance(reading, AsMatrix) and layer.name == "head"
        expected[layer.name] = exact(layer, single - single.mean(0) if plain else signed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with analysis.Profiler(model, optimizer, x[:1], every=1, convolutions=reading, seed=seed) as profile:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    history = profile.history
    assert history.refused.keys() <= {"fold"}
    assert history.expected is not None
    for layer in history.layers:
        kappa, diffusion = (RATE * one / (count * (count - 1)) for one in expected[layer.name])
        assert layer.kappa is not None
        assert layer.diffusion is not None
        assert float(layer.kappa[0]) == pytest.approx(kappa, rel=1e-8)
        assert float(layer.diffusion[0]) == pytest.approx(diffusion, rel=1e-8)


def test_training_is_the_same_with_and_without_probes():
    results: list[list[Tensor]] = []
    for watched in (False, True):
        model, x, y, _ = setting("images", 6)
        assert isinstance(model, nn.Sequential)
        model.insert(1, nn.Dropout())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if watched:
            with analysis.Profiler(model, optimizer, x, 2, convolutions=AsOperator(), probes=2) as profile:
                steps(model, optimizer, x, y)
            assert profile.history.expected is not None
        else:
            steps(model, optimizer, x, y)
        results.append([*(p.detach() for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def profiled(model: nn.Module, x: Tensor, backward: Callable[[], object]) -> analysis.History:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, x, convolutions=AsOperator()) as profile:
        backward()
        optimizer.step()
    assert profile.history.expected is None
    assert all(layer.kappa is None for layer in profile.history.layers)
    return profile.history


def clip(model: nn.Module, x: Tensor) -> None:
    model(x).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def pass_twice(model: nn.Module, x: Tensor) -> None:
    for _ in range(2):
        model(x).square().mean().backward()


def call_twice(model: nn.Module, x: Tensor) -> None:
    (model(x).square().mean() + model(2 * x).square().mean()).backward()


def take_one(model: nn.Module, x: Tensor) -> None:
    model(x[:1]).square().mean().backward()


def go_around(model: nn.Module, x: Tensor) -> None:
    assert isinstance(model, nn.Sequential)
    for layer in model:
        x = layer(x)
    x.square().mean().backward()


@pytest.mark.parametrize(
    ("backward", "reason"),
    [
        (clip, "gradient changed"),
        (pass_twice, "gradient changed"),
        (call_twice, "2 backward passes"),
        (take_one, "one sample"),
        (go_around, "0 backward passes"),
    ],
)
def test_gradients_that_signs_do_not_describe_are_named(backward: Callable[[nn.Module, Tensor], None], reason: str):
    model, x, _, _ = setting("images", 6)
    history = profiled(model, x, lambda: backward(model, x))
    assert "Layer '0'" in history.refused["expected"]
    assert reason in history.refused["expected"]


def test_samples_that_mix_are_named():
    model, x, _, _ = setting("images", 6)
    mixing = nn.Sequential(model, nn.BatchNorm1d(3).double())
    history = profiled(mixing, x, lambda: mixing(x).square().mean().backward())
    assert "batch normalisation '1'" in history.refused["sampled"]


class Loss(nn.Module):
    """Gives the loss of a batch, or a pair, not an output for each sample."""

    def __init__(self, model: nn.Module, pair: bool) -> None:
        super().__init__()
        self.model, self.pair = model, pair

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, int]:
        loss = self.model(x).square().mean()
        return (loss, 0) if self.pair else loss


@pytest.mark.parametrize(("pair", "reason"), [(False, "gives a number"), (True, "gives tuple")])
def test_a_model_without_an_output_for_each_sample_is_named(pair: bool, reason: str):
    inner, x, _, _ = setting("images", 6)
    model = Loss(inner, pair)

    def backward() -> None:
        found = model(x)
        (found[0] if isinstance(found, tuple) else found).backward()

    assert reason in profiled(model, x, backward).refused["expected"]
