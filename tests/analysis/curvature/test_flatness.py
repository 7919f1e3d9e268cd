"""Estimates of spectra, Keskar's measure, and two inequalities: closed forms, dense spectra and quadrature."""

import math

import pytest
import scipy
import torch
from torch import nn
from torch.nn import functional

from lipkit import analysis
from lipkit.analysis import Hessian
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.linops import Dense, Diagonal, materialize


def symmetric(n: int, seed: int = 0) -> torch.Tensor:
    matrix = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (matrix + matrix.mT) / math.sqrt(2 * n)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ends_of_definite_and_indefinite_spectra(sign: float):
    values = torch.linspace(0.5, 3.0, 40, dtype=torch.float64)
    for spectrum in (sign * values, sign * torch.cat([values, -values]), torch.zeros(5), torch.tensor([0.0, 1, -1, 1])):
        wide = spectrum.double()
        found = analysis.extreme_eigenvalues(Diagonal(wide, (len(wide),)))
        assert found.smallest == pytest.approx(float(wide.min()), abs=1e-6)
        assert found.largest == pytest.approx(float(wide.max()), abs=1e-6)
        assert max(found.residuals) <= 1e-5


def test_residuals_hold_before_convergence():
    matrix = symmetric(200)
    truth = torch.linalg.eigvalsh(matrix)
    for steps in (2, 5, 20, 80):
        found = analysis.extreme_eigenvalues(Dense(matrix), steps=steps)
        for value, residual in zip((found.smallest, found.largest), found.residuals, strict=True):
            assert float((truth - value).abs().min()) <= residual + 1e-12
        assert float(truth[0]) - 1e-12 <= found.smallest <= found.largest <= float(truth[-1]) + 1e-12


def test_the_trace_lies_within_its_standard_errors():
    matrix = symmetric(60, seed=1)
    truth = float(matrix.trace())
    scores = []
    for seed in range(60):
        found = analysis.estimate_trace(Dense(matrix), probes=50, seed=seed)
        scores.append((found.value - truth) / found.standard_error)
    # t-distributed with 49 degrees: mean square 1.04, for 60 draws between .6 and 1.6 with four standard deviations.
    assert 0.5 < sum(s * s for s in scores) / 60 < 1.8
    exact = analysis.estimate_trace(Diagonal(torch.arange(5.0), (5,)), probes=2)
    assert (exact.value, exact.standard_error) == (10.0, 0.0)


def test_the_density_of_a_semicircle():
    matrix = symmetric(400, seed=2)
    found = analysis.spectral_density(Dense(matrix), probes=8, steps=40)
    assert float(found.weights.sum()) == pytest.approx(1.0, rel=1e-12)
    # Second and fourth moment of the matrix itself, up to the spread of 8 probes of 400 signs: 2 sqrt(2 / 3200) = 5 %.
    for power in (2, 4):
        truth = float(torch.linalg.eigvalsh(matrix).pow(power).mean())
        assert float((found.nodes.pow(power) * found.weights).sum()) == pytest.approx(truth, rel=0.1)
    values = torch.linalg.eigvalsh(matrix)
    inside = float(((values > 0) & (values < 1)).double().mean())
    assert found.share_between(0.0, 1.0) == pytest.approx(inside, abs=0.05)
    grid = torch.linspace(-4, 4, 801, dtype=torch.float64)
    assert float(torch.trapezoid(found.density(grid, 0.1), grid)) == pytest.approx(1.0, abs=1e-6)


def test_a_probe_that_ends_early_keeps_its_weights():
    found = analysis.spectral_density(Diagonal(torch.tensor([1.0, 1.0, 2.0]).double(), (3,)), probes=3, steps=30)
    assert found.share_between(0.9, 1.1) == pytest.approx(2 / 3, rel=1e-12)
    assert found.share_between(1.9, 2.1) == pytest.approx(1 / 3, rel=1e-12)


def test_bad_arguments_are_named():
    op = Dense(symmetric(3))
    with pytest.raises(ArgumentError, match="steps must be at least 1, got 0"):
        analysis.extreme_eigenvalues(op, steps=0)
    with pytest.raises(ArgumentError, match="two probes, got 1"):
        analysis.estimate_trace(op, probes=1)
    with pytest.raises(ArgumentError, match="probes must be at least 1"):
        analysis.spectral_density(op, probes=0)
    with pytest.raises(ArgumentError, match="width"):
        analysis.spectral_density(op).density(torch.zeros(1, dtype=torch.float64), 0.0)
    with pytest.raises(ShapeError, match="space to itself"):
        analysis.estimate_trace(Dense(torch.ones(2, 3)))
    with pytest.raises(ArgumentError, match="real operators"):
        analysis.estimate_trace(Dense(torch.eye(2, dtype=torch.complex64)))
    with pytest.raises(NonFiniteError, match="NaN"):
        analysis.estimate_trace(Dense(torch.full((2, 2), math.nan)))


def separable(curvature: float) -> Hessian:
    """(curvature / 2) ||theta||^2 at zero, for five parameters."""
    model = nn.Linear(5, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    return Hessian(model, lambda out, _: curvature / 2 * out.square().sum(), (torch.eye(5).double(), torch.zeros(1)))


@pytest.mark.parametrize("curvature", [2.0, 50.0])
def test_keskars_measure_of_a_quadratic(curvature: float):
    # The maximum is at every corner of the box of half side epsilon: curvature / 2 * 5 epsilon^2, and L = 0.
    found = analysis.keskar_sharpness(separable(curvature), epsilon=0.1)
    assert found == pytest.approx(curvature / 2 * 5 * 0.01, rel=1e-12)


def test_keskars_measure_never_exceeds_the_truth():
    torch.manual_seed(0)
    model = nn.Linear(2, 2).double()
    x, y = torch.randn(6, 2, dtype=torch.float64), torch.randint(0, 2, (6,))
    hessian = Hessian(model, functional.cross_entropy, (x, y))
    found = analysis.keskar_sharpness(hessian, epsilon=0.2)
    point, half = hessian.point, 0.2 * (hessian.point.abs() + 1)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 6)
    # The loss is convex in the parameters, so a corner is a maximum.
    with torch.no_grad():
        best = max(float(hessian.value(point + corner * half)) for corner in corners)
        here = float(hessian.value())
    truth = (best - here) / (1 + here)
    assert 0.99 * truth <= found <= truth * (1 + 1e-12)
    with pytest.raises(ArgumentError, match="positive"):
        analysis.keskar_sharpness(hessian, epsilon=0.0)


def test_the_layerwise_bound_at_a_sample_that_is_fitted():
    for seed in range(10):
        torch.manual_seed(seed)
        layers = nn.Linear(3, 5).double(), nn.Linear(5, 4).double(), nn.Linear(4, 2).double()
        model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        x = torch.randn(1, 3, dtype=torch.float64)
        target = model(x).detach()
        hessian = Hessian(model, lambda out, y: (out - y).square().sum() / 2, (x, target), layers=["0", "2"])
        truth = float(torch.linalg.matrix_norm(materialize(hessian), 2))
        weights = [layer.weight.detach() for layer in layers]
        hidden = [x, torch.tanh(layers[0](x)).detach()]
        # The derivative of W h + b in (W, b) has the norm (||h||^2 + 1)^(1/2), and tanh is 1-Lipschitz.
        direct = [math.sqrt(float(h.square().sum()) + 1) for h in hidden]
        sizes = [float(torch.linalg.matrix_norm(w, 2)) for w in weights]
        bound = analysis.layerwise_hessian_bound(direct, sizes[:2], sizes[2] ** 2)
        assert truth <= bound
        assert bound <= 100 * truth  # not vacuous


def test_the_layerwise_bound_is_attained_by_one_linear_layer():
    assert analysis.layerwise_hessian_bound([2.0], [9.0], 3.0) == pytest.approx(12.0)
    assert analysis.layerwise_hessian_bound([2.0, 5.0], [9.0, 0.5], 3.0) == pytest.approx((2 * 0.5 + 5) ** 2 * 3)
    with pytest.raises(ArgumentError, match="got 1 and 2"):
        analysis.layerwise_hessian_bound([1.0], [1.0, 1.0], 1.0)
    with pytest.raises(ArgumentError, match="finite"):
        analysis.layerwise_hessian_bound([math.nan], [1.0], 1.0)


@pytest.mark.parametrize(("smoothness", "gradient", "sigma"), [(2.0, 0.3, 0.5), (1.0, 2.0, 0.1), (5.0, 0.1, 3.0)])
def test_the_smoothed_bound_is_attained_by_a_ramp(smoothness: float, gradient: float, sigma: float):
    # The smoothed slope is E[clip(H (t + sigma z), -eps, eps)]; its derivative at 0 is H P(|H sigma z| < eps).
    edge = gradient / (smoothness * sigma)
    mass, _ = scipy.integrate.quad(lambda z: math.exp(-z * z / 2) / math.sqrt(2 * math.pi), -edge, edge, epsabs=1e-13)
    found = analysis.smoothed_hessian_bound(smoothness, gradient, sigma)
    assert found == pytest.approx(smoothness * mass, rel=1e-10)
    if (smoothness, gradient, sigma) == (2.0, 0.3, 0.5):
        assert found == pytest.approx(0.4716457, abs=5e-8)
    with pytest.raises(ArgumentError, match="sigma > 0"):
        analysis.smoothed_hessian_bound(smoothness, gradient, 0.0)


def test_inequalities_neither_overflow_nor_vanish():
    assert analysis.layerwise_hessian_bound([1e200], [1.0], 1.0) == math.inf
    assert analysis.layerwise_hessian_bound([1e200, 1e200], [1.0, 1e200], 0.0) == 0.0
    assert analysis.layerwise_hessian_bound([1e-200], [1.0], 1.0) > 0
    # Far from the kink the bound is gradient / sigma (2 / pi)^(1/2), whatever smoothness times sigma is.
    for smoothness, sigma in ((1e300, 1e300), (1e200, 1.0)):
        expected = math.sqrt(2 / math.pi) / sigma
        found = analysis.smoothed_hessian_bound(smoothness, 1.0, sigma)
        assert expected <= found <= expected * (1 + 1e-12)
    assert analysis.smoothed_hessian_bound(1e-300, 1.0, 1e-300) == pytest.approx(1e-300, rel=1e-12)
