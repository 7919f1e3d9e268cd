"""Methods that make isometries: singular values, projections, inverses, determinants."""

import pytest
import torch
from torch import Tensor

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import MatrixMethod, Promise, WeightMethod
from lipkit.nn.methods.cayley import Cayley
from lipkit.nn.methods.exponential import Exponential
from lipkit.nn.methods.householder import Householder
from lipkit.nn.methods.newton_schulz import NewtonSchulz
from lipkit.nn.methods.polar import Polar
from lipkit.nn.methods.qr import QR, QRFactorization
from support.layers.matrix_methods import (
    ALWAYS,
    FULL_RANK,
    ISOMETRIES,
    SHAPES,
    degenerate,
    gaussian,
    ordinary,
    orthogonal,
)

DTYPES = (torch.float32, torch.float64)


def made(method: WeightMethod, raw: Tensor) -> Tensor:
    return method(raw, Geometry(len(raw), raw.shape[1], raw.shape[2]))


def singular_values(weight: Tensor) -> Tensor:
    return torch.linalg.svdvals(weight.detach().to(torch.float64))


def proven_at_most_one(weight: Tensor) -> bool:
    # svdvals itself may be high by a few n 2^-53; nothing else is forgiven.
    return float(singular_values(weight).max()) <= 1 + 8 * max(weight.shape) * 2.0**-53


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", ISOMETRIES, ids=str)
def test_all_singular_values_are_one(method: WeightMethod, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        for name, raw in ordinary(*shape).items():
            weight = made(method, raw.to(dtype))
            assert weight.dtype == dtype
            assert weight.shape == raw.shape
            assert proven_at_most_one(weight), (name, shape)
            # 2e-5 is what layers promise in float32. The square Gaussians here have condition below 100.
            assert float(singular_values(weight).min()) >= 1 - 2e-5, (name, shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", ISOMETRIES, ids=str)
def test_degenerate_free_matrices_give_finite_contractions(method: WeightMethod, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        for name, raw in degenerate(*shape).items():
            free = raw.to(dtype).requires_grad_()
            weight = made(method, free)
            assert proven_at_most_one(weight), (name, shape)
            (gradient,) = torch.autograd.grad((weight * gaussian(*shape, 3).to(dtype)).sum(), free)
            assert bool(torch.isfinite(gradient).all()), (name, shape)


# A zero column is no reflection, so that zero and tiny free matrices give the identity; still an isometry.
@pytest.mark.parametrize("method", ALWAYS, ids=str)
def test_these_are_isometries_of_every_free_matrix(method: WeightMethod) -> None:
    for shape in SHAPES:
        for name, raw in degenerate(*shape).items():
            weight = made(method, raw.to(torch.float32))
            assert float(singular_values(weight).min()) >= 1 - 2e-5, (name, shape)


@pytest.mark.parametrize("method", FULL_RANK, ids=str)
def test_a_singular_free_matrix_comes_out_short_and_is_told(method: WeightMethod) -> None:
    weight = made(method, gaussian(8, 1) @ gaussian(1, 8))
    assert float(singular_values(weight).min()) < 0.99
    assert not method.is_feasible(weight, Geometry(1, 8, 8))
    assert method.is_feasible(made(method, gaussian(8, 8)), Geometry(1, 8, 8))


@pytest.mark.parametrize("method", [Polar(), NewtonSchulz(30)], ids=str)
def test_projections_give_the_polar_factor(method: WeightMethod) -> None:
    for shape in SHAPES:
        raw = gaussian(*shape)
        # 1e-9: condition 100 times 2^-53, and Newton-Schulz's last step; the storing shrinks by 2e-12.
        torch.testing.assert_close(made(method, raw), orthogonal(*shape), atol=1e-9, rtol=0)


@pytest.mark.parametrize("by", QRFactorization, ids=str)
def test_qr_is_the_factor_with_positive_diagonal(by: QRFactorization) -> None:
    raw = gaussian(9, 6)
    weight = made(QR(by), raw)
    triangular = weight.mT @ raw
    # Cholesky's ridge of 2^-20 changes the factor by 1e-11.
    torch.testing.assert_close(weight @ triangular.triu(), raw, atol=1e-9, rtol=0)
    assert bool((torch.diagonal(triangular, dim1=-2, dim2=-1) > 0).all())


def test_householder_is_the_product_of_its_reflections() -> None:
    for rows, cols in ((7, 7), (9, 4), (5, 1)):
        raw = gaussian(rows, cols)
        product = torch.eye(rows, dtype=torch.float64)
        for vector in raw[0].T:
            product = product @ (torch.eye(rows).double() - 2 * torch.outer(vector, vector) / vector.dot(vector))
        # 1e-11 is what storing takes off.
        torch.testing.assert_close(made(Householder(), raw)[0], product[:, :cols], atol=1e-11, rtol=0)


def test_householder_stays_an_isometry_when_all_reflections_are_almost_equal() -> None:
    raw = torch.ones(1, 64, 64) + 1e-3 * gaussian(64, 64).float()
    assert float(singular_values(made(Householder(), raw)).min()) >= 1 - 2e-5


def test_cayley_is_the_textbook_formula() -> None:
    raw = gaussian(6, 6)
    skew, identity = (raw - raw.mT)[0], torch.eye(6, dtype=torch.float64)
    expected = (identity - skew) @ torch.linalg.inv(identity + skew)
    torch.testing.assert_close(made(Cayley(), raw)[0], expected, atol=1e-11, rtol=0)


def test_exponential_is_the_exponential_of_a_skew_matrix() -> None:
    raw = gaussian(8, 3) / 2
    upper, lower = raw[0, :3], raw[0, 3:]
    turn = torch.zeros(8, 8, dtype=torch.float64)
    turn[3:, :3], turn[:3, 3:] = lower, -lower.T
    expected = torch.matrix_exp(turn)[:, :3] @ torch.matrix_exp(upper - upper.T)
    torch.testing.assert_close(made(Exponential(), raw)[0], expected, atol=1e-11, rtol=0)


def reachable(method: MatrixMethod, rows: int, cols: int) -> Tensor:
    """A feasible matrix far from where the method starts."""
    weight = orthogonal(rows, cols, 5)
    if rows == cols:
        wanted = (-1.0) ** cols if isinstance(method, Householder) else 1.0
        weight[:, 0] *= torch.linalg.det(weight).sign() * wanted
    return weight


@pytest.mark.parametrize("method", ISOMETRIES, ids=str)
def test_inverse_finds_free_numbers_of_feasible_matrices(method: MatrixMethod) -> None:
    for shape in (*SHAPES[:3], (8, 7), (2, 2)):
        weight, geometry = reachable(method, *shape), Geometry(1, *shape)
        assert method.is_feasible(weight, geometry)
        # QR's ridge by Cholesky is 2^-20, its effect (2^-20)^2 cols; the others are at storing's 2e-12.
        torch.testing.assert_close(method(method.inverse(weight, geometry), geometry), weight, atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", ISOMETRIES, ids=str)
def test_initial_weights_are_feasible_and_survive_the_inverse(method: WeightMethod) -> None:
    single = ((1,), (1,), ((0, 0),), (1,))
    for geometry in (Geometry(1, 8, 8), Geometry(2, 7, 7, *single), Geometry(1, 9, 4), Geometry(3, 4, 6, *single)):
        start = method.start(geometry).to(torch.float64)
        assert method.is_feasible(start, geometry)
        # Drawn in float32: an isometry to 1e-6.
        torch.testing.assert_close(method(method.inverse(start, geometry), geometry), start, atol=5e-6, rtol=0)


@pytest.mark.parametrize("method", [Cayley(), Exponential()], ids=str)
def test_the_other_determinant_is_out_of_reach_and_replaced_by_a_near_rotation(method: WeightMethod) -> None:
    weight, geometry = orthogonal(5, 5), Geometry(1, 5, 5)
    weight[:, 0] *= -torch.linalg.det(weight).sign()
    assert not method.is_feasible(weight, geometry)
    found = method(method.inverse(weight, geometry), geometry)
    # The nearest rotation differs by turning one direction round: a distance of 2.
    assert float(torch.linalg.vector_norm(found - weight)) == pytest.approx(2, abs=1e-6)


def test_householder_gives_the_other_determinant_with_a_reflection_missing() -> None:
    weight, geometry = orthogonal(5, 5), Geometry(1, 5, 5)
    weight[:, 0] *= torch.linalg.det(weight).sign()
    assert not Householder().is_feasible(weight, geometry)
    free = Householder().inverse(weight, geometry)
    assert bool((free[..., -1] == 0).all())
    torch.testing.assert_close(Householder()(free, geometry), weight, atol=1e-11, rtol=0)


@pytest.mark.parametrize("angle", ["half turn", "minus identity"])
def test_angles_of_pi_are_reached_by_the_exponential_and_almost_by_cayley(angle: str) -> None:
    weight = torch.diag(torch.tensor([-1.0, -1.0, 1.0, 1.0] if angle == "half turn" else [-1.0] * 4).double())[None]
    geometry = Geometry(1, 4, 4)
    assert Exponential().is_feasible(weight, geometry)
    assert not Cayley().is_feasible(weight, geometry)
    exact = Exponential()(Exponential().inverse(weight, geometry), geometry)
    torch.testing.assert_close(exact, weight, atol=1e-11, rtol=0)
    near = Cayley()(Cayley().inverse(weight, geometry), geometry)
    # The tangent of half the angle is cut at 2^10: 2^-9 from pi.
    torch.testing.assert_close(near, weight, atol=2.0**-8, rtol=0)


def test_exponential_inverts_isometries_whose_upper_block_is_a_reflection() -> None:
    for weight in (torch.eye(6, 3), torch.diag(torch.tensor([-1.0, 1.0, 1.0]))):
        tall = torch.zeros(1, 6, 3, dtype=torch.float64)
        tall[:, : len(weight)] = weight
        found = Exponential()(Exponential().inverse(tall, Geometry(1, 6, 3)), Geometry(1, 6, 3))
        torch.testing.assert_close(found, tall, atol=1e-11, rtol=0)


def test_reflections_of_the_identity_are_all_alive() -> None:
    free = Householder().inverse(torch.eye(6, dtype=torch.float64)[None], Geometry(1, 6, 6))
    assert bool((torch.linalg.vector_norm(free, dim=-2) > 0.5).all())


@pytest.mark.parametrize("method", ISOMETRIES, ids=str)
def test_promises(method: WeightMethod) -> None:
    assert method.promise(Geometry(1, 3, 4)) is Promise.ISOMETRY
    assert method.promise(Geometry(1, 3, 4, (1,), (2,), ((0, 0),), (1,))) is Promise.CONTRACTION
    with pytest.raises(UnsupportedError, match="RKO"):
        method.promise(Geometry(1, 3, 4, (3,), (1,), ((0, 0),), (1,)))


def test_newton_schulz_wants_two_steps_and_does_not_blow_up() -> None:
    with pytest.raises(ArgumentError, match="at least 2, got 1"):
        NewtonSchulz(1)
    torch.testing.assert_close(made(NewtonSchulz(200), gaussian(9, 9)), orthogonal(9, 9), atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", [Cayley(), Exponential(), Householder(), Polar(), QR(), NewtonSchulz(25)], ids=str)
def test_float32_rounding_stays_below_one_at_width_256(method: WeightMethod) -> None:
    values = singular_values(made(method, 0.06 * gaussian(256, 256).float() + orthogonal(256, 256).float()))
    assert float(values.max()) <= 1
    assert float(values.min()) >= 1 - 2e-5
