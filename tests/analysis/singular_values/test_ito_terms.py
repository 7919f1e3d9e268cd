"""Ito terms of functions of singular values: closed forms without any, differences, draws, and the profiler's terms."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from lipkit.analysis.dynamics.noise.gradient_noise import Contractions
from lipkit.analysis.dynamics.noise.process_sums import Processes
from lipkit.analysis.dynamics.tracked_layers import AsMatrix
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.linops import Dense
from lipkit.regularizers.linear_layers import layers_of
from support.unchecked import unchecked

FUNCTIONALS: dict[str, Callable[[Tensor], Tensor]] = {
    "nuclear norm": torch.sum,
    "entropy": analysis.spectral_entropy,
    "condition": analysis.condition_number,
    "gap": analysis.spectral_gap,
    "log norm": analysis.log_spectral_norm,
    "second value": lambda s: s[1],
}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def differences(matrix: Tensor, functional: Callable[[Tensor], Tensor], drift: Tensor, noises: Tensor) -> list[float]:
    """Transport, curvature and diffusion by central differences of order four of phi(svdvals(.))."""
    h = 2e-3 * float(torch.linalg.svdvals(matrix)[0])

    def along(x: Tensor) -> tuple[float, float]:
        unit = x / x.norm()
        p, q, r, s, t = (float(functional(torch.linalg.svdvals(matrix + j * h * unit))) for j in range(-2, 3))
        first = (p - 8 * q + 8 * s - t) / (12 * h) * float(x.norm())
        return first, (-p + 16 * q - 30 * r + 16 * s - t) / (12 * h**2) * float(x.norm()) ** 2

    rows = [along(noise) for noise in noises]
    return [along(drift)[0], sum(second for _, second in rows) / 2, *(first for first, _ in rows)]


@pytest.mark.parametrize("name", FUNCTIONALS)
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (2, 5)])
def test_terms_are_those_of_differences(name: str, shape: tuple[int, int]):
    matrix, drift = normal(2, *shape, seed=shape[0])
    noises = normal(3, *shape, seed=9)
    found = analysis.ito_terms(matrix, FUNCTIONALS[name], drift, noises)
    expected = torch.tensor(differences(matrix, FUNCTIONALS[name], drift, noises), dtype=torch.float64)
    measured = torch.tensor([found.transport, found.curvature, *found.diffusion.tolist()], dtype=torch.float64)
    # Differences: rounding 1e-16 / h^2 = 1e-11 of phi, and h^4 = 1e-11 times sixth derivatives, which small gaps
    # multiply by up to 1e5.
    assert torch.allclose(measured, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def test_the_squared_frobenius_norm_has_no_need_of_singular_values():
    drift, noises = normal(5, 3, seed=1), normal(4, 5, 3, seed=2)
    for matrix in (normal(5, 3, seed=3), torch.eye(5, 3).double(), torch.diag(torch.tensor([2.0, 0, 0]))[:, :3]):
        whole = torch.zeros(5, 3, dtype=torch.float64)
        whole[: len(matrix)] = matrix
        found = analysis.ito_terms(whole, lambda s: s.square().sum(), drift, noises)
        # Values that are repeated or zero do no harm: the function is smooth everywhere.
        assert found.transport == pytest.approx(2 * float((whole * drift).sum()), rel=1e-12)
        assert found.curvature == pytest.approx(float(noises.square().sum()), rel=1e-12)
        assert torch.allclose(found.diffusion, 2 * (noises * whole).sum((1, 2)), rtol=0, atol=1e-12)
        assert found.variance == pytest.approx(float((2 * (noises * whole).sum((1, 2))).square().sum()), rel=1e-12)


def test_the_logarithm_of_a_determinant_has_its_closed_form():
    matrix, drift, noises = normal(4, 4, seed=1), normal(4, 4, seed=2), normal(3, 4, 4, seed=3)
    found = analysis.ito_terms(matrix, lambda s: s.log().sum(), drift, noises)
    solved = torch.linalg.solve(matrix, noises)
    # d log|det A| = tr(A^-1 dA) - tr(A^-1 dA A^-1 dA) / 2; the condition number is below 100.
    assert found.transport == pytest.approx(float(torch.linalg.solve(matrix, drift).trace()), rel=1e-11)
    assert found.curvature == pytest.approx(-float(torch.einsum("jab,jba->", solved, solved)) / 2, rel=1e-11)
    assert torch.allclose(found.diffusion, torch.einsum("jaa->j", solved), rtol=1e-11)
    assert found.drift == found.transport + found.curvature


def test_symmetric_functions_are_smooth_where_values_are_repeated():
    orthogonal = torch.linalg.qr(normal(4, 4, seed=1)).Q
    wide = torch.cat([orthogonal, torch.zeros(4, 2, dtype=torch.float64)], 1)
    for matrix in (3 * orthogonal, wide):
        drift, noises = normal(*matrix.shape, seed=2), normal(2, *matrix.shape, seed=3)
        for functional in (torch.sum, analysis.spectral_entropy):
            found = analysis.ito_terms(matrix, functional, drift, noises)
            expected = differences(matrix, functional, drift, noises)
            # As above, without small gaps: the function does not see them.
            assert found.transport == pytest.approx(expected[0], rel=1e-7, abs=1e-7)
            assert found.curvature == pytest.approx(expected[1], rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("name", ["nuclear norm", "entropy", "condition", "gap", "log norm"])
def test_the_mean_and_the_variance_of_draws(name: str):
    matrix = torch.tensor([[2.0, 0.3, 0.1], [0.2, 1.0, 0.4]], dtype=torch.float64)
    drift, noises = normal(2, 3, seed=2), normal(2, 2, 3, seed=3)
    time, draws = 1e-4, 20_000
    functional = FUNCTIONALS[name]
    found = analysis.ito_terms(matrix, functional, drift, noises)
    z = normal(draws, 2, seed=4)
    step = math.sqrt(time) * torch.einsum("sj,jmn->smn", z, noises)

    def each(moved: Tensor) -> Tensor:
        return torch.func.vmap(functional)(torch.linalg.svdvals(moved))

    pairs = (each(matrix + time * drift + step) + each(matrix + time * drift - step)) / 2 - found.value
    error = float(pairs.std()) / math.sqrt(draws)
    # Antithetic pairs leave the second order, whose next terms are a share of the time: four standard errors and 1 %.
    assert float(pairs.mean()) == pytest.approx(time * found.drift, abs=4 * error + 0.01 * time * abs(found.drift))
    # The curvature counts: without it the mean is far off.
    assert abs(found.curvature) * time > 8 * error
    change = each(matrix + time * drift + step) - found.value
    # A variance of so many draws is off by a share of 1 % (one standard error).
    assert float(change.var()) == pytest.approx(time * found.variance, rel=0.05)


def test_log_of_the_norm_has_the_terms_of_the_profiler():
    matrix, gradients, rate = normal(4, 6, seed=1), normal(7, 4, 6, seed=2), 0.05
    count = len(gradients)
    measured = AsMatrix().measure(Dense(matrix))
    assert measured.gram is not None
    parts = gradients / count
    heard = Contractions(parts @ measured.right, torch.einsum("smn,m->sn", parts, measured.left))
    (layer,) = AsMatrix().track(layers_of(nn.Linear(6, 4), torch.zeros(1, 6)))
    noise = heard.noise(layer, measured, Processes())
    noises = math.sqrt(rate / (count * (count - 1))) * (gradients - gradients.mean(0))
    found = analysis.ito_terms(matrix, analysis.log_spectral_norm, -gradients.mean(0), noises)
    assert found.curvature == pytest.approx(rate * (noise.curvature - noise.diffusion / 2), rel=1e-10)
    assert found.variance == pytest.approx(rate * noise.diffusion, rel=1e-10)


def test_what_has_no_second_derivative_is_refused():
    zero, noises = torch.zeros(3, 3, dtype=torch.float64), normal(1, 3, 3, seed=1)
    repeated = torch.diag(torch.tensor([2.0, 2.0, 1.0]))
    with pytest.raises(ArgumentError, match="tells the two apart"):
        analysis.ito_terms(repeated, analysis.spectral_gap, zero, noises)
    with pytest.raises(ArgumentError, match="tells the two apart"):
        # Equal slopes, zero here, are not enough.
        analysis.ito_terms(repeated, lambda s: (s[0] - 2) ** 2 - (s[1] - 2) ** 2 + s[2], zero, noises)
    singular = torch.diag(torch.tensor([2.0, 1.0, 0.0]))
    with pytest.raises(ArgumentError, match="kink"):
        analysis.ito_terms(singular, torch.sum, zero, noises)
    with pytest.raises(ArgumentError, match="not finite"):
        analysis.ito_terms(singular, analysis.condition_number, zero, noises)
    # A value that does not matter may be zero or repeated.
    assert math.isfinite(analysis.ito_terms(singular, analysis.log_spectral_norm, zero, noises).drift)


def test_bad_input_is_refused():
    matrix, noises = torch.eye(2).double(), torch.zeros(1, 2, 2)
    with unchecked(), pytest.raises(ShapeError, match="Noises"):
        analysis.ito_terms(matrix, torch.sum, matrix, torch.zeros(1, 3, 2))
    with pytest.raises(NonFiniteError, match="noises"):
        analysis.ito_terms(matrix, torch.sum, matrix, noises + math.nan)
    with pytest.raises(ArgumentError, match="matrix is zero"):
        analysis.ito_terms(0 * matrix, torch.sum, matrix, noises)
    with pytest.raises(ArgumentError, match="one real number"):
        analysis.ito_terms(matrix, lambda s: s, matrix, noises)
    with pytest.raises(ArgumentError, match="two singular values"):
        analysis.ito_terms(torch.ones(1, 3), analysis.spectral_gap, torch.ones(1, 3), torch.ones(1, 1, 3))
