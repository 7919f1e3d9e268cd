"""Optimizers on orthonormal matrices: they stay there, go where the gradient says, and refuse what they cannot do."""

import copy
from collections.abc import Callable

import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipkit.errors import ArgumentError, ShapeError
from lipkit.optim import (
    CayleyRetraction,
    ExponentialRetraction,
    PolarRetraction,
    QRRetraction,
    Retraction,
    RiemannianSGD,
    StiefelMuon,
)
from lipkit.optim._optimizer import tangent
from lipkit.optim.muon import bjorck_step, bjorck_step_in_parts, orthogonalise

RETRACTIONS: tuple[Retraction, ...] = (QRRetraction(), CayleyRetraction(), ExponentialRetraction(), PolarRetraction())


def orthonormal(rows: int, cols: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(max(rows, cols), min(rows, cols), dtype=torch.float64, generator=generator))[0]
    return q if rows >= cols else q.mT.contiguous()


def residual(matrix: torch.Tensor) -> float:
    tall = matrix.detach() if matrix.shape[0] >= matrix.shape[1] else matrix.detach().mT
    return float(torch.linalg.matrix_norm(tall.mT @ tall - torch.eye(tall.shape[1], dtype=tall.dtype), 2))


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 1000))
def test_the_tangent_projection_is_the_orthogonal_one(cols: int, more: int, seed: int) -> None:
    point = orthonormal(cols + more, cols, seed)
    torch.manual_seed(seed)
    direction = torch.randn_like(point)
    found = tangent(point, direction)
    inner = point.mT @ found
    assert torch.allclose(inner + inner.mT, torch.zeros_like(inner), atol=1e-12)
    # The rest is orthogonal to every tangent vector: W S with S symmetric.
    assert abs(float(((direction - found) * found).sum())) < 1e-10


@pytest.mark.parametrize("retraction", RETRACTIONS, ids=str)
@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (6, 1)])
def test_retractions_start_along_their_step(retraction: Retraction, shape: tuple[int, int]) -> None:
    point = orthonormal(*shape)
    torch.manual_seed(1)
    direction = tangent(point, torch.randn_like(point))
    assert torch.allclose(retraction(point, 0 * direction), point, atol=1e-14)
    h = 1e-5
    slope = (retraction(point, h * direction) - retraction(point, -h * direction)) / (2 * h)
    # Central differences are off by h^2 times a third derivative.
    assert torch.allclose(slope, direction, atol=1e-8)
    assert residual(retraction(point, 0.05 * direction)) < 1e-13


def test_the_cayley_retraction_is_the_transform_of_the_skew_matrix() -> None:
    point = orthonormal(7, 3)
    torch.manual_seed(2)
    step = tangent(point, torch.randn_like(point))
    half = torch.eye(7, dtype=torch.float64) - point @ point.mT / 2
    skew = half @ step @ point.mT - point @ step.mT @ half
    expected = torch.linalg.solve(torch.eye(7) - skew / 2, (torch.eye(7) + skew / 2) @ point)
    assert torch.allclose(CayleyRetraction()(point, step), expected, atol=1e-13)


@pytest.mark.parametrize("shape", [(7, 3), (7, 5), (4, 4)])
@pytest.mark.parametrize("size", [0.01, 1.0, 4.0])
def test_the_exponential_retraction_is_the_geodesic(shape: tuple[int, int], size: float) -> None:
    """[W, Q] exp([[W'Z, -R'], [R, 0]]) [I; 0] with Q R = Z - W W'Z, the form of Edelman, Arias and Smith."""
    rows, cols = shape
    point = orthonormal(rows, cols)
    torch.manual_seed(2)
    step = size * tangent(point, torch.randn_like(point))
    q, r = torch.linalg.qr(step - point @ point.mT @ step)
    zero = torch.zeros(cols, cols, dtype=torch.float64)
    block = torch.cat([torch.cat([point.mT @ step, -r.mT], 1), torch.cat([r, zero], 1)])
    turned = torch.from_numpy(scipy.linalg.expm(block.numpy()))[:, :cols]
    assert torch.allclose(ExponentialRetraction()(point, step), torch.cat([point, q], 1) @ turned, atol=1e-12)
    if rows == cols:
        on_group = point @ torch.from_numpy(scipy.linalg.expm((point.mT @ step).numpy()))
        assert torch.allclose(ExponentialRetraction()(point, step), on_group, atol=1e-12)
    # A geodesic keeps its speed: half of the step twice, with the tangent that has been carried along.
    half = ExponentialRetraction()(point, step / 2)
    speed = (ExponentialRetraction()(point, 0.5001 * step) - ExponentialRetraction()(point, 0.4999 * step)) / 2e-4
    # Central differences: 1e-8 times a third derivative.
    assert torch.allclose(
        ExponentialRetraction()(half, speed / 2), ExponentialRetraction()(point, step), atol=1e-7 * (1 + size) ** 4
    )


OPTIMIZERS = {
    **{f"SGD, {r}": lambda p, r=r: RiemannianSGD(p, 0.1, 0.9, r) for r in RETRACTIONS},
    "Muon": lambda p: StiefelMuon(p, lr=0.02),
    "Muon without Nesterov": lambda p: StiefelMuon(p, lr=0.02, nesterov=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shape", [(8, 8), (10, 4), (4, 10)])
def test_stays_orthonormal_and_descends(name: str, shape: tuple[int, int]) -> None:
    target = orthonormal(*shape, seed=3).float()
    weights = [nn.Parameter(orthonormal(*shape, seed=seed).float()) for seed in (4, 5)]
    optimizer = OPTIMIZERS[name](weights)

    def loss() -> torch.Tensor:
        # In the square case the target may be on the other component; the trace still falls.
        return torch.stack([(w - target).square().sum() for w in weights]).sum()

    first = float(loss().detach())
    for _ in range(150):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert float(loss().detach()) < 0.9 * first
    if isinstance(optimizer, StiefelMuon):
        # Steps of 0.004 sqrt(n): the square is 1e-4.
        assert max(map(residual, weights)) < 1e-3
        optimizer.retract()
    # float32 leaves n 2^-24 and a little.
    assert max(map(residual, weights)) < 1e-5


def test_a_thousand_steps_do_not_drift() -> None:
    weight = nn.Parameter(orthonormal(12, 12).float())
    optimizer = RiemannianSGD([weight], lr=0.05, momentum=0.9)
    torch.manual_seed(0)
    for _ in range(1000):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    assert residual(weight) < 1e-5


def test_orthogonalised_directions_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(3, 40, 20), 5))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3
    assert not bool(orthogonalise(torch.zeros(1, 4, 3), 5).any())


def test_kernels_with_one_tap_are_matrices() -> None:
    layer = nn.Conv2d(6, 6, 1, bias=False)
    nn.init.orthogonal_(layer.weight)
    optimizer = StiefelMuon(layer.parameters(), lr=0.05)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn_like(layer.weight)
    optimizer.step()
    assert not torch.equal(layer.weight, before)
    assert residual(layer.weight.flatten(1)) < 0.05


def test_equal_shapes_are_moved_as_each_alone() -> None:
    together = [nn.Parameter(orthonormal(6, 4, seed).float()) for seed in range(3)]
    alone = [nn.Parameter(w.detach().clone()) for w in together]
    torch.manual_seed(0)
    gradients = [torch.randn(6, 4) for _ in together]
    optimizers = [StiefelMuon(together), *(StiefelMuon([w]) for w in alone)]
    for _ in range(3):
        for group in (together, alone):
            for weight, gradient in zip(group, gradients, strict=True):
                weight.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(together, alone, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_resumes_from_its_state() -> None:
    weight = nn.Parameter(orthonormal(5, 5).float())
    optimizer = StiefelMuon([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    again = nn.Parameter(weight.detach().clone())
    other = StiefelMuon([again])
    # torch shares the tensors of the state it is given.
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for w, o in ((weight, optimizer), (again, other)):
        w.grad = torch.full_like(w, 0.5)
        o.step()
    assert torch.equal(weight, again)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: StiefelMuon([nn.Parameter(torch.zeros(3))]), ShapeError, "matrices"),
        (lambda: StiefelMuon([nn.Parameter(torch.zeros(3, 2, 3, 3))]), ShapeError, "one tap"),
        (lambda: RiemannianSGD([nn.Parameter(torch.randn(3, 3))], 0.1), ArgumentError, "orthogonal_"),
        (lambda: RiemannianSGD([nn.Parameter(torch.eye(3))], -1.0), ArgumentError, "lr"),
        (lambda: StiefelMuon([nn.Parameter(torch.eye(3))], momentum=1.0), ArgumentError, "momentum"),
        (lambda: StiefelMuon([nn.Parameter(torch.eye(3))], every=0), ArgumentError, "every"),
        (lambda: RiemannianSGD([nn.Parameter(torch.full((2, 2), torch.nan))], 0.1), ArgumentError, "orthonormal"),
    ],
)
def test_refuses(build: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build()


def test_the_step_back_in_parts_is_the_step_back() -> None:
    torch.manual_seed(0)
    start = torch.linalg.qr(torch.randn(3, 96, 40, dtype=torch.float64)).Q
    points = (start + 0.01 * torch.randn(3, 96, 40) / 96**0.5).float()
    found = bjorck_step_in_parts(points).double()
    # I - W'W is known to 2^-18 of |W|'|W|, whose norm is below 8 here, and half of it is added; its own product has
    # 2^-8 of a defect of 0.03.
    assert float((found - bjorck_step(points.double())).abs().max()) < 8 * 2.0**-19 + 0.5 * 0.03 * 2.0**-7
    before, after = (torch.linalg.matrix_norm(w.mT @ w - torch.eye(40), 2) for w in (points.double(), found))
    # The defect squares, up to those errors.
    assert float((after - before.square()).max()) < 2.0**-13


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (6, 4, 1, 1)])
def test_muon_is_its_formula(shape: tuple[int, ...], nesterov: bool) -> None:
    torch.manual_seed(0)
    # Two of equal shape, which are moved together, and each is compared with the formula by itself.
    weights = [nn.Parameter(nn.init.orthogonal_(torch.empty(shape, dtype=torch.float64))) for _ in range(2)]
    expected = [weight.detach().flatten(1).clone() for weight in weights]
    momenta = [torch.zeros_like(point) for point in expected]
    optimizer = StiefelMuon(weights, lr=0.05, momentum=0.8, nesterov=nesterov)
    for _ in range(3):
        gradients = [torch.randn(shape, dtype=torch.float64) for _ in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
        for i, gradient in enumerate(g.flatten(1) for g in gradients):
            momenta[i] = 0.8 * momenta[i] + gradient
            expected[i] = _muon(expected[i], gradient + 0.8 * momenta[i] if nesterov else momenta[i], 0.05)
    for weight, point in zip(weights, expected, strict=True):
        # The same products in another order: some hundred roundings of 1e-16.
        torch.testing.assert_close(weight.detach().flatten(1), point, rtol=0, atol=1e-12)


def _muon(point: Tensor, direction: Tensor, lr: float) -> Tensor:
    """One step written out for a single matrix: tangent, five quintic steps, the move, one step back."""
    if point.shape[0] < point.shape[1]:
        return _muon(point.T, direction.T, lr).T
    inner = point.T @ direction
    z = direction - point @ (inner + inner.T) / 2
    z = z / torch.linalg.matrix_norm(z)
    for _ in range(5):
        z = 3.4445 * z - 4.7750 * z @ z.T @ z + 2.0315 * z @ z.T @ z @ z.T @ z
    moved = point - lr * 0.2 * max(point.shape) ** 0.5 * z
    return 1.5 * moved - 0.5 * moved @ moved.T @ moved


@pytest.mark.parametrize("live", [False, True], ids=["rate a number", "rate a tensor"])
def test_every_third_step_moves_three_times_as_far(live: bool) -> None:
    torch.manual_seed(0)
    often, rare = (nn.Parameter(orthonormal(6, 4, seed)) for seed in (1, 2))
    optimizer = StiefelMuon([{"params": [often]}, {"params": [rare], "every": 3}], lr=0.01, momentum=0.8)
    assert optimizer.period == 3
    if live:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(0.01, dtype=torch.float64)
    expected, momentum = rare.detach().clone(), torch.zeros(6, 4, dtype=torch.float64)
    for step in range(1, 8):
        before = often.detach().clone()
        often.grad, rare.grad = torch.randn(2, 6, 4, dtype=torch.float64)
        momentum = 0.8 * momentum + rare.grad
        optimizer.step()
        assert not torch.equal(often, before)
        if step % 3 == 0:
            z = rare.grad + 0.8 * momentum
            z = z - expected @ (expected.mT @ z + z.mT @ expected) / 2
            moved = expected - 3 * 0.01 * 0.2 * 6**0.5 * orthogonalise(z[None], 5)[0]
            expected = 1.5 * moved - 0.5 * moved @ moved.mT @ moved
        # Sums of float64 in another order.
        assert torch.allclose(rare, expected, atol=1e-12)
    again = StiefelMuon([{"params": [often]}, {"params": [rare], "every": 3}])
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    # The eighth step is no third one, the ninth is; one of them a graph has replayed.
    again.count_replayed()
    before = rare.detach().clone()
    rare.grad = torch.randn(6, 4, dtype=torch.float64)
    again.step()
    assert not torch.equal(rare, before)


def test_long_steps_with_a_rate_that_is_a_tensor_are_those_with_a_number() -> None:
    ends = []
    for rate in (2.0, torch.tensor(2.0, dtype=torch.float64)):
        torch.manual_seed(0)
        weight = nn.Parameter(orthonormal(6, 4))
        optimizer = StiefelMuon([weight], lr=2.0)
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.randn(6, 4, dtype=torch.float64)
        optimizer.step()
        ends.append(weight.detach())
    assert torch.allclose(*ends, atol=1e-12)
