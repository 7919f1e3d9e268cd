"""kappa and lambda from hooks: against gradients of single samples, and against draws of single steps."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lipkit import analysis
from lipkit.analysis.dynamics.noise import gradient_noise
from lipkit.analysis.singular_values.gram_decomposition import decompose_gram, spectral_norm_by_gram
from lipkit.errors import NonFiniteError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (5, 5), (1, 4), (4, 1), (1, 1)])
def test_the_form_is_that_of_a_decomposition(shape: tuple[int, int]):
    matrix, change = normal(2, *shape, seed=sum(shape))
    gram = decompose_gram(matrix)
    form = float(gram.form(change @ gram.right, change.mT @ gram.left))
    # Both are in float64; gaps here are above a tenth of the value.
    assert form == pytest.approx(float(analysis.singular_value_hessian(matrix).form(change)), rel=1e-10, abs=1e-13)
    assert gram.value == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-14)
    assert gram.gap == pytest.approx(analysis.taylor(matrix, [change]).radius * 2 * norm(change), rel=1e-10)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (5, 5), (1, 4), (4, 1)])
def test_the_diagonal_is_that_of_unit_matrices(shape: tuple[int, int]):
    matrix = normal(*shape, seed=sum(shape))
    units = torch.eye(matrix.numel(), dtype=torch.float64).reshape(-1, *shape)
    expected = analysis.singular_value_hessian(matrix).form(units).reshape(shape)
    # Both are in float64; gaps here are above a tenth of the value.
    assert torch.allclose(decompose_gram(matrix).diagonal(), expected, rtol=1e-10, atol=1e-13)


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def test_a_repeated_value_has_gap_zero_and_a_finite_form():
    gram = decompose_gram(torch.eye(3, dtype=torch.float64))
    change = normal(3, 3)
    assert gram.gap == pytest.approx(0, abs=1e-15)
    assert math.isfinite(float(gram.form(change @ gram.right, change.mT @ gram.left)))


def test_a_norm_by_its_gram_matrix():
    matrix = normal(4, 7)
    for one in (matrix, matrix.mT):
        # One rounding of a square and of its root.
        assert spectral_norm_by_gram(one) == pytest.approx(norm(matrix), rel=1e-14)


def test_numbers_that_square_out_of_range_are_refused():
    with pytest.raises(NonFiniteError, match="out of the range"):
        decompose_gram(torch.full((2, 2), 1e200, dtype=torch.float64))


class Tokens(nn.Module):
    """A linear layer at several positions of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(x).tanh().mean(1))


def images(padding: Literal["zeros", "reflect", "circular"], stride: int, dilation: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, stride=stride, padding=2, dilation=dilation, padding_mode=padding),
        nn.ReLU(inplace=True),
        nn.Conv2d(5, 4, (3, 1), padding="same"),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


CASES = {
    "tokens": (Tokens, (5, 4)),
    "zeros": (lambda: images("zeros", 1, 1), (2, 7, 7)),
    "stride": (lambda: images("circular", 2, 1), (2, 7, 7)),
    "dilation": (lambda: images("reflect", 1, 2), (2, 7, 7)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_noise_terms_are_those_of_stored_gradients(case: str, reduction: str):
    torch.manual_seed(0)
    make, shape = CASES[case]
    model = make().double()
    count, rate = 9, 0.01
    x, y = normal(count, *shape, seed=1), torch.arange(count) % 3
    # The last layer learns its shape.
    model(x)
    model.zero_grad()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        factor = count if reduction == "sum" else 1
        return factor * nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    stored = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with analysis.Profiler(model, optimizer, x[:1], every=1) as profile:
        nn.functional.cross_entropy(model(x), y, reduction=reduction).backward()
        optimizer.step()
    assert profile.history.refused == {}
    for layer in profile.history.layers:
        matrix = weights[f"{layer.name}.weight"].flatten(1)
        gradients = stored[f"{layer.name}.weight"].flatten(2)
        centred = gradients - gradients.mean(0)
        hessian = analysis.singular_value_hessian(matrix)
        _, u, v = hessian.triplet()
        share = rate / (count * (count - 1))
        kappa = share * float(hessian.form(centred).sum()) / (2 * layer.norm[0])
        diffusion = share * float(torch.einsum("m,smn,n->s", u, centred, v).square().sum()) / layer.norm[0] ** 2
        assert layer.kappa is not None
        assert layer.diffusion is not None
        # The same sums in another order, in float64.
        assert float(layer.kappa[0]) == pytest.approx(float(kappa), rel=1e-9)
        assert float(layer.diffusion[0]) == pytest.approx(float(diffusion), rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_parts_are_those_of_the_whole_covariance(case: str):
    """Sigma as a matrix over all entries, from stored gradients, and its diagonal, its mean variance and its rest."""
    torch.manual_seed(0)
    make, shape = CASES[case]
    model = make().double()
    count, rate = 9, 0.01
    x, y = normal(count, *shape, seed=1), torch.arange(count) % 3
    model(x)
    model.zero_grad()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    stored = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with analysis.Profiler(model, optimizer, x[:1], every=1, split=True) as profile:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert profile.history.refused == {}
    for layer in profile.history.layers:
        matrix = weights[f"{layer.name}.weight"].flatten(1)
        rows = stored[f"{layer.name}.weight"].flatten(1)
        covariance = torch.cov(rows.mT) / count
        hessian = analysis.singular_value_hessian(matrix)
        units = torch.eye(matrix.numel(), dtype=torch.float64).reshape(-1, *matrix.shape)
        dense = hessian.apply(units).flatten(1)
        value, u, v = hessian.triplet()
        slope = torch.outer(u, v).flatten()
        variances = torch.diag(covariance.diagonal())
        mean = covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
        wanted = {"": covariance, "_variance": variances, "_covariance": covariance - variances, "_scalar": mean}
        for part, sigma in wanted.items():
            kappa, diffusion = getattr(layer, f"kappa{part}"), getattr(layer, f"diffusion{part}")
            # The same sums in another order, in float64; parts of one whole may cancel.
            assert float(kappa[0]) == pytest.approx(rate * float((dense * sigma).sum()) / (2 * value), rel=1e-8)
            expected = rate * float(slope @ sigma @ slope) / value**2
            assert float(diffusion[0]) == pytest.approx(expected, rel=1e-8)
        # The parts tell something: they are not all alike.
        assert layer.kappa_variance is not None
        assert layer.kappa_scalar is not None
        assert float((layer.kappa_variance - layer.kappa_scalar).abs()) > 1e-3 * float(layer.kappa_variance)


def test_parts_of_terms_in_float32_and_of_many_samples_at_once(monkeypatch: pytest.MonkeyPatch):
    delta, rows = normal(20, 3, 4, seed=1), normal(20, 3, 5, seed=2)
    each = torch.einsum("spm,spn->smn", delta, rows)
    expected = (each - each.mean(0)).square().sum(0)
    torch.testing.assert_close(gradient_noise.spread_of_products(delta, rows).squares, expected)
    monkeypatch.setattr(gradient_noise, "_TOGETHER", 50)
    torch.testing.assert_close(gradient_noise.spread_of_products(delta, rows).squares, expected)
    single = gradient_noise.spread_of_products(delta[:, :1], rows[:, :1]).squares
    torch.testing.assert_close(single, (delta[:, 0, :, None] * rows[:, 0, None]).var(0) * 19)
    # A sample that is all of the gradient: nothing is left but rounding, and never less than zero.
    same = gradient_noise.spread_of_products(delta[:1, :1].expand(7, 1, 4), rows[:1, :1].expand(7, 1, 5)).squares
    assert float(same.min()) >= 0
    assert float(same.max()) < 1e-14 * float(each.abs().max()) ** 2 * 7


def test_layers_that_are_heard_by_signs_are_not_split():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 2)).double()
    x = normal(6, 2, 5, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, x[:1], 1, convolutions=analysis.AsOperator(), split=True) as profile:
        model(x).square().mean().backward()
        optimizer.step()
    first, last = profile.history.layers
    assert "'0' is heard by random signs" in profile.history.refused["split"]
    assert first.kappa is not None
    assert first.kappa_variance is first.kappa_covariance is first.diffusion_covariance is None
    optimizer.zero_grad()
    with analysis.Profiler(model, optimizer, x[:1], every=1) as profile:
        model(x).square().mean().backward()
        optimizer.step()
    assert profile.history.refused == {}
    assert last.name == profile.history.layers[1].name
    assert profile.history.layers[1].kappa_variance is None


def test_a_split_profile_is_resumed():
    data = [(normal(8, 4, seed=seed), torch.arange(8) % 2) for seed in range(9)]

    def start() -> tuple[nn.Module, torch.optim.Optimizer, analysis.Profiler]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, analysis.Profiler(model, optimizer, data[0][0][:1], every=2, split=True)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, part: slice) -> None:
        for x, y in data[part]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    model, optimizer, whole = start()
    with whole:
        train(model, optimizer, slice(9))
    model, optimizer, first = start()
    with first:
        train(model, optimizer, slice(5))
        state = first.state_dict()
    second = analysis.Profiler(model, optimizer, data[0][0][:1], every=2, split=True)
    second.load_state_dict(state)
    with second:
        train(model, optimizer, slice(5, 9))
    one, other = whole.history.layers[0], second.history.layers[0]
    for name in ("kappa", "kappa_variance", "diffusion_variance", "kappa_scalar", "diffusion_scalar"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_one_step_has_the_drift_and_the_variance_of_the_model():
    """Batches drawn from 40 samples with replacement: mean and variance of log sigma after one step of SGD."""
    x, target = normal(40, 6, seed=1), normal(40, 4, seed=2)
    start, rate, size, draws = normal(4, 6, seed=3), 0.02, 8, 40_000
    residuals = x @ start.mT - target
    single = torch.einsum("sm,sn->smn", residuals, x)
    hessian = analysis.singular_value_hessian(start)
    value, u, v = hessian.triplet()
    mean = single.mean(0)
    # What continuous time drops: the second order of the mean step itself.
    slope = float(u @ mean @ v) / value
    second = rate**2 * (float(hessian.form(mean)) / (2 * value) - slope**2 / 2)

    layer = nn.Linear(6, 4, bias=False).double()
    layer.weight.data.copy_(start)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
    with analysis.Profiler(layer, optimizer, x[:1], every=1) as profile:
        (layer(x) - target).square().sum(1).div(2).mean().backward()
        optimizer.step()
    found = profile.history.layers[0]
    assert found.kappa is not None
    assert found.diffusion is not None
    # The profiler estimates the noise of a batch of 40 with 39 for unbiasedness; batches of 8 of this population have
    # 40/8 times the variance, and a population has 39/40 of the unbiased estimate.
    scale = 40 / size * 39 / 40
    kappa, diffusion = float(found.kappa[0]) * scale, float(found.diffusion[0]) * scale
    model = -rate * slope + rate * (kappa - diffusion / 2) + second

    chosen = torch.randint(40, (draws, size), generator=torch.Generator().manual_seed(4))
    steps = torch.cat([single[part].mean(1) for part in chosen.split(4000)])
    moved = torch.linalg.matrix_norm(start - rate * steps, 2).log() - math.log(value)
    error = float(moved.std()) / math.sqrt(draws)
    # Four standard errors, and third order: a thousandth of the second-order terms' size is not seen at this rate.
    assert float(moved.mean()) == pytest.approx(model, abs=4 * error + 0.1 * rate * (kappa + diffusion))
    assert rate * kappa > 8 * error
    # The variance of a variance is about 2 / draws; the second-order part adds a few per cent.
    assert float(moved.var()) == pytest.approx(rate * diffusion, rel=0.1)
