"""Riemannian steps of every length end on the manifold, also after saving, loading and copying."""

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from lipkit.optim import (
    CayleyRetraction,
    ExponentialRetraction,
    PolarRetraction,
    QRRetraction,
    Retraction,
    RiemannianSGD,
    StiefelMuon,
)

RETRACTIONS: tuple[Retraction, ...] = (QRRetraction(), CayleyRetraction(), ExponentialRetraction(), PolarRetraction())
TYPES = (torch.float32, torch.float64)


def _residual(weight: Tensor) -> float:
    matrix = weight.detach().flatten(1).double()
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    return float(torch.linalg.matrix_norm(tall.mT @ tall - torch.eye(tall.shape[1], dtype=torch.float64), 2))


def _start(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(nn.init.orthogonal_(torch.empty(shape, dtype=dtype)))


def _step(optimizer: RiemannianSGD, weights: list[nn.Parameter], targets: list[Tensor]) -> None:
    optimizer.zero_grad()
    torch.stack([(w - t).square().sum() for w, t in zip(weights, targets, strict=True)]).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lr", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("retraction", RETRACTIONS, ids=str)
def test_every_step_ends_on_the_manifold(
    retraction: Retraction, lr: float, momentum: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    weights = [_start(*shape, dtype=dtype) for shape in ((8, 8), (20, 6), (6, 20), (12, 1), (8, 8), (5, 9, 1, 1))]
    targets = [torch.randn_like(weight) for weight in weights]
    optimizer = RiemannianSGD(weights, lr, momentum, retraction)
    for _ in range(40):
        _step(optimizer, weights, targets)
        # Products of matrices with 20 rows, a few in a row.
        assert max(map(_residual, weights)) < 60 * torch.finfo(dtype).eps


@pytest.mark.parametrize("size", [0.0, 1e-3, 0.3, 1.0, 2.0, 1e3, 1e6])
def test_the_polar_retraction_is_the_polar_factor(size: float) -> None:
    torch.manual_seed(1)
    point = _start(11, 6, dtype=torch.float64).detach()
    direction = torch.randn_like(point)
    inner = point.mT @ direction
    step = direction - point @ (inner + inner.mT) / 2
    step = step * (size / torch.linalg.matrix_norm(step, 2))
    left, _, right = torch.linalg.svd(point + step, full_matrices=False)
    # The factor is as sharp as the smallest singular value, 1, is known: to 1e-16 times the size of the step.
    torch.testing.assert_close(PolarRetraction()(point, step), left @ right, rtol=0, atol=1e-13 + 1e-15 * size)


def test_a_run_resumes_to_the_bit() -> None:
    torch.manual_seed(0)
    for dtype in (*TYPES, torch.bfloat16):
        weight, target = nn.Parameter(_start(9, 5).detach().to(dtype)), torch.randn(9, 5).to(dtype)
        optimizer = RiemannianSGD([weight], 0.1, 0.9, PolarRetraction())
        for _ in range(3):
            _step(optimizer, [weight], [target])
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        again = nn.Parameter(weight.detach().clone())
        other = RiemannianSGD([again], 1.0, 0.5, PolarRetraction())
        other.load_state_dict(torch.load(file))
        for _ in range(3):
            _step(optimizer, [weight], [target])
            _step(other, [again], [target])
        assert torch.equal(weight, again)


def test_copies_keep_the_retraction() -> None:
    optimizer = RiemannianSGD([_start(4, 4)], 0.1, retraction=CayleyRetraction())
    twin = copy.deepcopy(optimizer)
    assert twin.retraction == CayleyRetraction()
    (weight,) = twin.param_groups[0]["params"]
    _step(twin, [weight], [torch.zeros(4, 4)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_muon_retracts_after_long_steps(dtype: torch.dtype) -> None:
    """A step much longer than one leaves singular values near zero, from which three Björck steps do not return."""
    torch.manual_seed(0)
    weights = [nn.Parameter(_start(*shape).detach().to(dtype)) for shape in ((12, 12), (20, 6), (5, 9))]
    optimizer = StiefelMuon(weights, lr=2.0)
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        optimizer.step()
    # One that nothing can be read off: a singular matrix.
    with torch.no_grad():
        weights[0][:, 0] = weights[0][:, 1]
    optimizer.retract()
    for weight in weights:
        values = torch.linalg.svdvals(weight.detach().double())
        # Rounding of entries changes singular values by at most n units.
        assert float((values - 1).abs().max()) <= 20 * torch.finfo(dtype).eps
