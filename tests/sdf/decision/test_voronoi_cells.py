"""Distances to cells: closed forms, and an independent solver of the same quadratic program."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from lipkit.sdf.decision import voronoi_cells
from lipkit.sdf.decision.voronoi_cells import reach


def tensor(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_a_corner_of_a_cell() -> None:
    # The cell of the origin among (2, 0) and (0, 2) is x, y <= 1, and (4, 5) is nearest to its corner (1, 1).
    found = reach(tensor([4.0, 5.0])[0], tensor([2.0, 0.0], [0.0, 2.0]), tensor([0.0, 0.0])[0])
    assert found.least <= 5 <= found.most
    assert found.most - found.least < 1e-12
    assert torch.allclose(found.normal, tensor([0.6, 0.8])[0])


def test_inside_the_cell_the_distance_is_zero() -> None:
    found = reach(tensor([0.5, -3.0])[0], tensor([2.0, 0.0], [0.0, 2.0]), tensor([0.0, 0.0])[0])
    assert found.least == 0
    assert found.most < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_it_encloses_what_another_solver_finds(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    own, other, x = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((12, 3), (3,), (3,)))
    found = reach(x, own, other + 2)
    apart = (own - other - 2).numpy()
    right = ((own.square().sum(1) - (other + 2).square().sum()) / 2).numpy()
    solved = minimize(
        lambda z: float(((z - x.numpy()) ** 2).sum()),
        (other + 2).numpy(),
        jac=lambda z: 2 * (z - x.numpy()),
        constraints={"type": "ineq", "fun": lambda z: right - apart @ z, "jac": lambda _: -apart},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    # SLSQP stops at about half the digits.
    assert found.least - 1e-6 <= float(np.sqrt(solved.fun)) <= found.most + 1e-6
    assert found.most - found.least < 1e-10


@pytest.mark.parametrize("seed", range(10))
def test_what_the_solver_says_is_not_believed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(seed)
    own, other, x = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((6, 2), (2,), (2,)))
    right = reach(x, own, other)
    plain = voronoi_cells._least_distance

    def wrong(rows: torch.Tensor, limits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        point, weights = plain(rows, limits)
        return 0.8 * point, weights + torch.rand(len(weights), generator=random, dtype=torch.float64)

    monkeypatch.setattr(voronoi_cells, "_least_distance", wrong)
    found = reach(x, own, other)
    # Wider, and still around the distance.
    assert found.least <= right.most
    assert right.least <= found.most
