"""Steps of low rank: the same as dense ones, at the rank they have; and the directions they take."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.optim import Directions, LeadingDirections, ProjUNND, ProjUNNT, RandomDirections, SampledColumns
from support.orthonormal import orthonormal, parameter, polar, residual

DIRECTIONS: tuple[Directions, ...] = (LeadingDirections(), RandomDirections(), SampledColumns())


def best_of_rank(matrix: Tensor, rank: int) -> Tensor:
    left, values, right = np.linalg.svd(matrix.numpy(), full_matrices=False)
    return torch.from_numpy(left[:, :rank] * values[:rank] @ right[:rank])


def rotated(point: Tensor, step: Tensor) -> Tensor:
    """exp((S X' - X S')/2) X, dense."""
    skew = (step @ point.mH - point @ step.mH) / 2
    return torch.from_numpy(scipy.linalg.expm(skew.numpy()) @ point.numpy())


@given(
    st.integers(1, 7),
    st.integers(0, 5),
    st.integers(1, 8),
    st.integers(0, 999),
    st.sampled_from([1e-3, 0.1, 1.0, 30.0]),
    st.booleans(),
)
def test_steps_are_the_dense_ones_of_the_same_rank(
    cols: int, more: int, rank: int, seed: int, lr: float, unitary: bool
) -> None:
    dtype = torch.complex128 if unitary else torch.float64
    torch.manual_seed(seed)
    point = orthonormal(cols + more, cols, seed, dtype)
    gradient = torch.randn_like(point)
    for kind, dense in ((ProjUNND, lambda step: polar(point + step)), (ProjUNNT, lambda step: rotated(point, step))):
        weight = nn.Parameter(point.clone())
        weight.grad = gradient
        kind([weight], lr, rank, directions=LeadingDirections()).step()
        expected = dense(-lr * best_of_rank(gradient, rank))
        # A projection is as sharp as the smallest singular value is known; rotations by large angles lose digits too.
        values = torch.linalg.svdvals(point - lr * best_of_rank(gradient, rank))
        tolerance = 1e-12 * float(values[0] / values[-1]) if kind is ProjUNND else 1e-12 * (1 + lr)
        assert float((weight.detach() - expected).norm()) < tolerance
        assert residual(weight) < 1e-12


def test_for_square_matrices_the_rotation_is_the_published_one() -> None:
    """U exp(-lr U' Pi(G)) with Pi(G) = (G - U G'U)/2."""
    torch.manual_seed(0)
    weight = parameter(6, 6)
    point, gradient = weight.detach().clone(), torch.randn(6, 6, dtype=torch.float64)
    weight.grad = gradient
    ProjUNNT([weight], 0.3, 6, directions=LeadingDirections()).step()
    tangent = (gradient - point @ gradient.T @ point) / 2
    expected = point @ torch.from_numpy(scipy.linalg.expm(-0.3 * (point.T @ tangent).numpy()))
    assert torch.allclose(weight.detach(), expected, atol=1e-13)


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (6, 3)])
def test_a_step_onto_a_singular_matrix_ends_on_the_manifold(shape: tuple[int, int]) -> None:
    """The gradient takes a column away, W - G is singular: every completion is nearest, and one is taken."""
    weight = parameter(*shape)
    gradient = torch.zeros(shape, dtype=torch.float64)
    gradient[:, 0] = weight.detach()[:, 0]
    weight.grad = gradient.clone()
    before = weight.detach().clone()
    ProjUNND([weight], 1.0, 1).step()
    assert residual(weight) < 1e-13
    # A distance of ||W - G - Q||_F = 1, whichever was taken.
    assert float((weight.detach() - (before - gradient)).norm()) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [ProjUNND, ProjUNNT])
def test_small_batches_have_gradients_of_small_rank_and_are_learned(kind: type[ProjUNND] | type[ProjUNNT]) -> None:
    """Batches of three samples of a teacher: rank three loses nothing, and the teacher is found."""
    torch.manual_seed(0)
    teacher = orthonormal(12, 8, 1)
    weight = parameter(12, 8, 2)
    optimizer = kind([weight], 0.03, rank=3)
    for _ in range(1500):
        x = torch.randn(8, 3, dtype=torch.float64)
        optimizer.zero_grad()
        ((weight - teacher) @ x).square().sum().backward()
        optimizer.step()
    assert float((weight.detach() - teacher).norm()) < 1e-6


@pytest.mark.parametrize("directions", DIRECTIONS, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_directions_hold_a_gradient_of_their_rank(directions: Directions, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gradients = torch.randn(4, 9, 3, dtype=dtype) @ torch.randn(4, 3, 6, dtype=dtype)
    basis = directions(gradients, 3, torch.Generator().manual_seed(0))
    assert basis.shape == (4, 9, 3)
    assert torch.allclose(basis.mH @ basis, torch.eye(3, dtype=dtype).expand(4, 3, 3), atol=1e-12)
    assert torch.allclose(basis @ (basis.mH @ gradients), gradients, atol=1e-10)
    # Zero has no directions; any will do.
    nothing = directions(torch.zeros(2, 5, 4, dtype=dtype), 2, torch.Generator().manual_seed(0))
    assert torch.allclose(nothing.mH @ nothing, torch.eye(2, dtype=dtype).expand(2, 2, 2), atol=1e-12)


def test_leading_directions_are_the_best() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(7, 5, dtype=torch.float64)
    basis = LeadingDirections()(gradient[None], 2, torch.Generator())[0]
    assert torch.allclose(basis @ basis.mT @ gradient, best_of_rank(gradient, 2), atol=1e-12)


def test_long_columns_are_sampled_more_often() -> None:
    gradients = torch.diag(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)).expand(4000, 3, 3)
    basis = SampledColumns()(gradients, 1, torch.Generator().manual_seed(0))
    shares = basis.abs().squeeze(-1).mean(0)
    # Probabilities 9/10 and 1/10: four standard deviations of 4000 draws.
    assert abs(float(shares[0]) - 0.9) < 4 * (0.09 / 4000) ** 0.5
    assert float(shares[2]) == 0.0


@pytest.mark.parametrize("kind", [ProjUNND, ProjUNNT])
def test_the_projection_removes_what_rounding_added(kind: type[ProjUNND] | type[ProjUNNT]) -> None:
    torch.manual_seed(0)
    residuals = []
    for every in (10_000, 5):
        weight = parameter(40, 40, dtype=torch.float32)
        optimizer = kind([weight], 0.05, 4, project_every=every)
        for _ in range(1000):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
        residuals.append(residual(weight))
    # Five steps in float32 leave some 1e-6, a thousand without a projection more.
    assert residuals[1] < 3e-6
    assert residuals[1] < residuals[0] / 2


@pytest.mark.parametrize("kind", [ProjUNND, ProjUNNT])
def test_a_start_that_was_rounded_is_drawn_onto_the_manifold(kind: type[ProjUNND] | type[ProjUNNT]) -> None:
    weight, late = (nn.Parameter(orthonormal(6, 4, seed).to(torch.bfloat16).double()) for seed in (1, 2))
    assert residual(weight) > 1e-3
    optimizer = kind([weight, late], 0.1, 2)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert residual(weight) < 1e-13
    # One that has its first gradient later is projected then.
    late.grad = torch.ones_like(late)
    assert residual(late) > 1e-3
    optimizer.step()
    assert residual(late) < 1e-13


def test_seeds_draw_different_directions_and_steps_too() -> None:
    ends = []
    for seed in (0, 0, 1):
        weight = parameter(8, 8)
        optimizer = ProjUNNT([weight], 0.1, 1, seed=seed)
        torch.manual_seed(0)
        for _ in range(3):
            weight.grad = torch.randn_like(weight)
            optimizer.step()
        ends.append(weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.allclose(ends[0], ends[2], atol=1e-3)
