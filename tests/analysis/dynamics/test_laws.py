"""Forecasts and laws against Monte-Carlo, enumerated batches and small trainings."""

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis import Forecast
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, UnsupportedError

PLAIN = Forecast(log_initial=0.5, drift=-0.3, curvature=0.2, diffusion=0.08)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5)).double()


def clusters(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(5, 20, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 5, (count,), generator=draws)
    return centres[labels] + torch.randn(count, 20, generator=draws, dtype=torch.float64), labels


def log_constant(model: nn.Module) -> float:
    weights = [p for p in model.parameters() if p.ndim == 2]
    return sum(math.log(torch.linalg.matrix_norm(weight.detach(), 2)) for weight in weights)


def train(
    model: nn.Module, steps: int, rate: float, change: Callable[[], None] | None = None, labels: Tensor | None = None
) -> None:
    x, y = clusters(2000)
    y = y if labels is None else labels
    order = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        chosen = torch.randint(0, len(x), (32,), generator=order)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        if change is not None:
            change()
        optimizer.step()


def profiled(steps: int = 23, rate: float = 0.05, every: int = 5, momentum: float = 0.0) -> analysis.History:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    x, y = clusters(steps * 16)
    with analysis.Profiler(model, optimizer, x[:1], every=every) as profile:
        for xs, ys in zip(x.split(16), y.split(16), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(xs), ys).backward()
            optimizer.step()
    return profile.history


def test_the_statistics_are_those_of_simulated_paths():
    # Geometric Brownian motion dK = K ((mu + kappa) dt + lambda dW) in products, not in logarithms.
    paths, steps = 40_000, 200
    draws = torch.Generator().manual_seed(0)
    constant = torch.full((paths,), math.exp(PLAIN.log_initial), dtype=torch.float64)
    for _ in range(steps):
        shock = torch.randn(paths, generator=draws, dtype=torch.float64) * math.sqrt(PLAIN.diffusion / steps)
        constant *= 1 + (PLAIN.drift + PLAIN.curvature) / steps + shock
    # The relative deviation of K is 0.29: its mean is known to 0.29 / 200 = 0.15 %, its variance to about 0.9 %; the
    # steps add 1 / 200 of small terms. Four times over.
    assert float(constant.mean()) == pytest.approx(math.exp(PLAIN.log_mean), rel=0.006)
    assert float(constant.var()) == pytest.approx(math.exp(PLAIN.log_variance), rel=0.04)
    # Standard errors of the mean and of the variance: 0.0014 and 0.7 %.
    assert float(constant.log().mean()) == pytest.approx(PLAIN.mean_log, abs=0.006)
    assert float(constant.log().var()) == pytest.approx(PLAIN.diffusion, rel=0.03)


@pytest.mark.parametrize("diffusion", [1e-12, 1.0, 1000.0])
def test_the_variance_neither_cancels_nor_overflows(diffusion: float):
    # log(e^d - 1) = log d for small d, d for large d, each to an error of the order of d or e^-d.
    found = Forecast(0.0, 0.0, 0.0, diffusion).log_variance
    assert found == pytest.approx({1e-12: math.log(1e-12), 1.0: math.log(math.e - 1)}.get(diffusion, diffusion))


def test_without_diffusion_nothing_scatters():
    assert Forecast(0.0, 0.1, 0.0, 0.0).log_variance == -math.inf


def test_a_forecast_has_the_mean_of_the_expected_tracker():
    history = profiled()
    found = analysis.forecast(history)
    assert history.expected is not None
    # The same sums in another order; 23 steps in intervals of 5, the last one shorter.
    assert found.mean_log == pytest.approx(float(history.expected[-1]), abs=1e-12)
    assert found.log_initial == pytest.approx(log_constant(network()), abs=1e-12)
    assert found.diffusion > 0
    assert found.curvature > 0
    assert found.kind is Kind.ESTIMATE


@pytest.mark.parametrize("rates", [(0.0, 0.01, 0.1, 0.05), (0.1, 0.0, 0.0, 0.0)])
def test_a_forecast_knows_the_rate_of_each_step(rates: tuple[float, ...]):
    model, (x, y) = network(), clusters(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with analysis.Profiler(model, optimizer, x[:1], every=3) as profile:
        for rate in (*rates, *rates):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    history = profile.history
    found = analysis.forecast(history)
    assert history.expected is not None
    assert found.mean_log == pytest.approx(float(history.expected[-1]), abs=1e-12)
    assert found.curvature > 0
    for layer in history.layers:
        sums = [sum(part) for part in ((*rates, *rates)[i : i + 3] for i in (0, 3, 6))]
        assert layer.time.tolist() == pytest.approx(sums, rel=1e-12)


def test_a_forecast_takes_the_covariance_that_it_is_asked_for():
    model, (x, y) = network(), clusters(24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with analysis.Profiler(model, optimizer, x[:1], every=1, split=True) as profile:
        for rows in torch.arange(24).split(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    layers = profile.history.layers
    for noise, part in (
        (analysis.NoiseModel.FULL, ""),
        (analysis.NoiseModel.DIAGONAL, "_variance"),
        (analysis.NoiseModel.SCALAR, "_scalar"),
    ):
        found = analysis.forecast(profile.history, noise)
        sums = [0.05 * sum(float(getattr(one, name + part).sum()) for one in layers) for name in ("kappa", "diffusion")]
        # The same sums in another order.
        assert [found.curvature, found.diffusion] == pytest.approx(sums, rel=1e-12)
    with pytest.raises(UnsupportedError, match="split=True"):
        analysis.forecast(profiled(steps=3), analysis.NoiseModel.SCALAR)


class Residual(nn.Module):
    """log K is not the sum of log norms here: K = (1 + a) b."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(20, 20), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.inside(x)).relu())


def test_a_network_that_is_no_chain_is_refused_by_name():
    model = Residual().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = clusters(16)
    with analysis.Profiler(model, optimizer, x[:1]) as profile:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert profile.history.expected is not None
    for law in (analysis.forecast, analysis.phases):
        with pytest.raises(UnsupportedError, match="'inside'"):
            law(profile.history)


def test_what_the_model_does_not_describe_is_refused():
    with pytest.raises(UnsupportedError, match="momentum"):
        analysis.forecast(profiled(steps=2, momentum=0.9))
    model = network()
    with analysis.Profiler(model, torch.optim.SGD(model.parameters(), lr=0.1), clusters(1)[0]) as profile:
        pass
    for law in (analysis.forecast, analysis.phases):
        with pytest.raises(ArgumentError, match="no step yet"):
            law(profile.history)
    for numbers in ((math.nan, 0, 0, 0), (0, math.inf, 0, 0), (0, 0, -1e-9, 0), (0, 0, 0, -1e-9)):
        with pytest.raises(ArgumentError, match="finite numbers"):
            Forecast(*numbers)


@pytest.mark.parametrize("size", [2, 3])
def test_terms_fall_with_the_batch_as_over_all_batches(size: int):
    # Every batch with replacement from four samples: the variance of its mean gradient, seen by both vectors.
    weight, rate = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64), 0.1
    gradients = torch.randn(4, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hessian = analysis.singular_value_hessian(weight)

    def of_batches(size: int) -> Forecast:
        means = torch.stack([gradients[list(chosen)].mean(0) for chosen in product(range(4), repeat=size)])
        noise = means - gradients.mean(0)
        curvature, diffusion = hessian.form(noise).mean() / (2 * 2), noise[:, 0, 0].square().mean() / 2**2
        return Forecast(0.0, 0.0, float(rate**2 * curvature), float(rate**2 * diffusion))

    predicted, found = analysis.batch_size_law(of_batches(1), size), of_batches(size)
    # Sums of at most 64 terms.
    assert predicted.curvature == pytest.approx(found.curvature, rel=1e-12)
    assert predicted.diffusion == pytest.approx(found.diffusion, rel=1e-12)


def test_the_variance_is_inverse_to_large_batches():
    small = Forecast(0.5, -0.3, 0.0, 0.08)
    one, two = analysis.batch_size_law(small, 1e4), analysis.batch_size_law(small, 2e4)
    # e^(C/M) - 1 = C/M up to C/M, which is 8e-6.
    assert math.exp(one.log_variance - two.log_variance) == pytest.approx(2, rel=1e-5)


def test_isotropic_noise_is_that_of_drawn_matrices():
    draws = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 6, generator=draws, dtype=torch.float64)
    noise, step = analysis.isotropic_noise(weight, 2.0), 0.02
    shocks = 2.0 * torch.randn(50_000, 4, 6, generator=draws, dtype=torch.float64)
    before = torch.linalg.matrix_norm(weight, 2).log()
    # With both signs, odd orders cancel in the mean.
    up, down = ((torch.linalg.matrix_norm(weight + s * step * shocks, 2).log() - before) for s in (1, -1))
    mean, error = (up + down).mean() / 2, (up + down).std() / 2 / 50_000**0.5
    # Four standard errors; the next order is step^2 of it, with a gap of 0.6 below 2 %.
    wanted = step**2 * (noise.curvature - noise.diffusion / 2)
    assert float(mean) == pytest.approx(wanted, abs=4 * float(error) + 0.02 * abs(wanted))
    # A variance of 50,000 draws is known to 0.6 %; higher orders add 1 %.
    assert float(up.var()) == pytest.approx(step**2 * noise.diffusion, rel=0.03)


def test_a_noisy_step_has_the_mean_and_variance_that_the_law_says():
    draws = torch.Generator().manual_seed(0)
    weight, gradient = torch.randn(2, 4, 6, generator=draws, dtype=torch.float64)
    gradient, rate, share, count = 0.1 * gradient, 0.05, 0.4, 50_000
    left, values, right = torch.linalg.svd(weight)
    start = float(values[0].log())
    plain = Forecast(start, float(-rate * left[:, 0] @ gradient @ right[0] / values[0]), 0.0, 0.0)
    law = analysis.gradient_noise_law(plain, share, [analysis.isotropic_noise(weight, 1.0)], rate, 1)
    noise = torch.randn(count, 4, 6, generator=draws, dtype=torch.float64)

    def logs(sign: int) -> Tensor:
        step = share**0.5 * gradient + sign * (1 - share) ** 0.5 * noise
        return torch.linalg.matrix_norm(weight - rate * step, 2).log()

    both = (logs(1) + logs(-1)) / 2
    # Four standard errors, and the second order of the gradient itself, which the model drops: (rate |g|)^2 / gap.
    dropped = float((rate * torch.linalg.vector_norm(gradient)) ** 2 / (values[0] - values[1]) / values[0])
    assert float(both.mean()) == pytest.approx(law.mean_log, abs=4 * float(both.std()) / count**0.5 + dropped)
    assert abs(law.mean_log - start) > 3 * (4 * float(both.std()) / count**0.5 + dropped)
    assert float(logs(1).var()) == pytest.approx(law.diffusion, rel=0.03)


def test_the_ends_of_the_laws():
    assert analysis.gradient_noise_law(PLAIN, 1.0, [analysis.Noise(1.0, 1.0)], 0.1, 10) == PLAIN
    assert analysis.label_noise_law(PLAIN, 0.0) == PLAIN
    assert analysis.batch_size_law(PLAIN, 1.0) == PLAIN
    assert analysis.label_noise_law(PLAIN, 1.0) == Forecast(PLAIN.log_initial, 0.0, 0.0, 0.0)
    half = analysis.label_noise_law(PLAIN, 0.5)
    # K(0) e^(drift / 2) e^(curvature / 4).
    assert half.log_mean == pytest.approx(0.5 - 0.3 / 2 + 0.2 / 4)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_shares_outside_of_their_interval_are_refused(wrong: float):
    draws = torch.Generator()
    calls: list[Callable[[], object]] = [
        lambda: analysis.gradient_noise_law(PLAIN, wrong),
        lambda: analysis.label_noise_law(PLAIN, wrong),
        lambda: analysis.mix_noise_into_gradients_([], wrong, analysis.GaussianGradientNoise(), draws),
        lambda: analysis.corrupt_labels(torch.zeros(3, dtype=torch.int64), 2, wrong, draws),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"in \[0, 1\]"):
            call()


def test_other_wrong_arguments_are_refused():
    weight = torch.eye(2, dtype=torch.float64) + torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    with pytest.raises(ArgumentError, match="positive, finite factor, got 0"):
        analysis.batch_size_law(PLAIN, 0.0)
    with pytest.raises(ArgumentError, match=r"rate=0\.0 and steps=0"):
        analysis.gradient_noise_law(PLAIN, 0.5, [analysis.Noise(1.0, 1.0)])
    with pytest.raises(ArgumentError, match="got -1"):
        analysis.isotropic_noise(weight, -1.0)
    with pytest.raises(ArgumentError, match="got 0 and 1"):
        analysis.fisher_curvature(weight, torch.zeros(1, 2, 2), 0)


def test_gradients_are_mixed_as_said():
    kept, noisy = (nn.Parameter(torch.zeros(100_000)) for _ in range(2))
    unused = nn.Parameter(torch.zeros(3))
    for parameter in (kept, noisy):
        parameter.grad = torch.full((100_000,), 3.0)
    draws = torch.Generator().manual_seed(0)
    analysis.mix_noise_into_gradients_([kept, unused], 1.0, analysis.GaussianGradientNoise(5.0), draws)
    analysis.mix_noise_into_gradients_([noisy], 0.25, analysis.GaussianGradientNoise(2.0), draws)
    assert unused.grad is None
    assert kept.grad is not None
    assert noisy.grad is not None
    assert bool((kept.grad == 3).all())
    # sqrt(.25) 3 and sqrt(.75) 2, known to 1.73 / 316 = 0.0055 and 0.0039; four times over.
    assert float(noisy.grad.mean()) == pytest.approx(1.5, abs=0.022)
    assert float(noisy.grad.std()) == pytest.approx(math.sqrt(3), abs=0.016)


def test_uniform_noise_is_uniform_and_has_its_own_law():
    noise = analysis.UniformGradientNoise()
    drawn = noise.draw(torch.Size([100_000]), torch.Generator().manual_seed(1))
    assert float(drawn.abs().max()) <= 0.5
    # Kolmogorov's statistic against [-1/2, 1/2]: above 2 / 316 once in a thousand draws.
    ranks = torch.arange(1, 100_001) / 100_000
    assert float((drawn.sort().values + 0.5 - ranks).abs().max()) < 2 / math.sqrt(100_000)
    assert noise.deviation == pytest.approx(1 / math.sqrt(12))
    # A variance of uniform draws is known to (1.8 - 1)^(1/2) / 316 of it; four times over.
    assert float(drawn.var()) == pytest.approx(noise.deviation**2, rel=0.012)
    parameter = nn.Parameter(torch.zeros(100_000))
    parameter.grad = torch.full((100_000,), 3.0)
    analysis.mix_noise_into_gradients_([parameter], 0.25, noise, torch.Generator().manual_seed(1))
    torch.testing.assert_close(parameter.grad, 1.5 + math.sqrt(0.75) * drawn.float())
    for law in (analysis.UniformGradientNoise, analysis.GaussianGradientNoise):
        with pytest.raises(ArgumentError, match="at least 0"):
            law(-1.0)


def test_one_step_of_uniform_noise_bends_the_norm_as_the_law_says():
    """Only the deviation of the noise counts: the mean of log sigma after a step along it."""
    weight = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    law, rate, draws = analysis.UniformGradientNoise(), 0.1, torch.Generator().manual_seed(4)
    terms = analysis.isotropic_noise(weight, law.deviation)
    moves = rate * law.draw(torch.Size([20_000, 4, 6]), draws)
    logs = (torch.linalg.matrix_norm(torch.stack([weight + moves, weight - moves]), 2)).log().mean(0)
    found = logs - torch.linalg.matrix_norm(weight, 2).log()
    expected = rate**2 * (terms.curvature - terms.diffusion / 2)
    # Four standard errors of the mean over pairs, and 2 % for fourth order at this rate.
    assert float(found.mean()) == pytest.approx(
        expected, abs=4 * float(found.std()) / math.sqrt(20_000) + 0.02 * expected
    )
    assert expected > 20 * float(found.std()) / math.sqrt(20_000)


def test_labels_are_replaced_with_their_probability():
    labels = torch.arange(100_000) % 10
    found = analysis.corrupt_labels(labels, 10, 0.3, torch.Generator().manual_seed(0))
    # p (1 - 1/10) = 0.27, known to 0.0014; four times over.
    assert float((found != labels).double().mean()) == pytest.approx(0.27, abs=0.0056)
    assert found.min() == 0
    assert found.max() == 9
    assert torch.equal(analysis.corrupt_labels(labels, 10, 0.0, torch.Generator()), labels)


@pytest.mark.train
def test_wrong_labels_lower_the_constant_of_a_training():
    labels, ends = clusters(2000)[1], []
    for probability in (0.0, 0.5, 1.0):
        model = network()
        wrong = analysis.corrupt_labels(labels, 5, probability, torch.Generator().manual_seed(0))
        train(model, 400, 0.05, labels=wrong)
        ends.append(log_constant(model))
    assert ends[0] > ends[1] > ends[2]


@pytest.mark.train
def test_scaled_gradients_lower_the_constant_and_unit_noise_raises_it():
    ends: dict[tuple[float, float], float] = {}
    none, normal = analysis.GaussianGradientNoise(0.0), analysis.GaussianGradientNoise(1.0)
    uniform = analysis.UniformGradientNoise()
    for share, noise in ((1.0, none), (0.25, none), (0.25, normal), (0.25, uniform)):
        model, draws = network(), torch.Generator().manual_seed(0)

        def change(model: nn.Module = model, share: float = share, noise: analysis.GradientNoise = noise) -> None:
            analysis.mix_noise_into_gradients_(model.parameters(), share, noise, draws)  # noqa: B023

        train(model, 400, 0.05, change)
        ends[share, noise.deviation] = log_constant(model)
    assert ends[0.25, 0.0] < ends[1.0, 0.0] < ends[0.25, 1.0]
    # Uniform noise has a twelfth of the variance, so it raises K by less.
    assert ends[0.25, 0.0] < ends[0.25, uniform.deviation] < ends[0.25, 1.0]


@pytest.mark.train
def test_near_convergence_the_noise_is_fisher_information():
    model = network()
    x, y = clusters(64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(2000):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        assert float(nn.functional.cross_entropy(model(x), y)) < 0.01
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, values, (x[None],)), y[None])

    stored = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(parameters, x, y)
    for name, weight in parameters.items():
        if weight.ndim == 2:
            found = analysis.fisher_curvature(weight, stored[name], 16)
            hessian = analysis.singular_value_hessian(weight)
            centred = stored[name] - stored[name].mean(0)
            value = float(torch.linalg.matrix_norm(weight, 2))
            noise = float(hessian.form(centred).mean()) / (2 * value * 16)
            # The mean gradient is small beside those of samples: it adds its own form, and no more.
            mean = float(hessian.form(stored[name].mean(0))) / (2 * value * 16)
            assert found > noise > 0
            assert found == pytest.approx(noise + mean, rel=1e-9)
            assert mean < 0.2 * noise
