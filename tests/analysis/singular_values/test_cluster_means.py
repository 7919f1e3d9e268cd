"""Means of clusters: contour integrals of the resolvent, sums of singular values, and a closed form."""

import cmath
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lipkit import analysis
from lipkit.errors import ArgumentError


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_values(values: list[float], rows: int, columns: int, seed: int) -> Tensor:
    """A matrix with these singular values and random vectors."""
    left = torch.linalg.qr(normal(rows, rows, seed=seed)).Q
    right = torch.linalg.qr(normal(columns, columns, seed=seed + 1)).Q
    count = len(values)
    return left[:, :count] @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right[:, :count].mT


def by_contour(matrix: Tensor, change: Tensor, centre: float, radius: float, order: int, size: int) -> float:
    """order! / size times the trace of (-1)^(n-1) / (2 pi i) times the integral of R (T_1 R)^n (z - centre).

    R is the resolvent (T - z)^-1 without perturbation on a circle around the cluster; the published formula of the
    weighted mean, in which a linear path leaves one term.
    """
    rows, columns = matrix.shape
    whole, moved = (torch.zeros(rows + columns, rows + columns, dtype=torch.complex128) for _ in range(2))
    for target, block in ((whole, matrix), (moved, change)):
        target[:rows, rows:], target[rows:, :rows] = block.to(target), block.mT.to(target)
    total, nodes = 0j, 200
    for node in range(nodes):
        step = radius * cmath.exp(2j * math.pi * node / nodes)
        resolvent = torch.linalg.inv(whole - (centre + step) * torch.eye(rows + columns).to(whole))
        product = resolvent @ torch.linalg.matrix_power(moved @ resolvent, order)
        # dz = i step d phi, and z - centre = step.
        total += complex(product.trace()) * step * step / nodes
    return math.factorial(order) * (-1) ** (order - 1) * total.real / size


@pytest.mark.parametrize("shape", [(5, 5), (7, 5), (5, 6)])
@pytest.mark.parametrize(
    ("values", "members"),
    [
        ([3.0, 3.0, 3.0, 1.0, 0.5], [0, 1, 2]),
        ([3.1, 3.0, 2.9, 1.0, 1.0], [0, 1, 2]),
        ([5.0, 3.0, 3.0, 1.0, 0.0], [1, 2]),
    ],
)
def test_derivatives_are_contour_integrals_of_the_resolvent(
    shape: tuple[int, int], values: list[float], members: list[int]
):
    matrix, change = with_values(values, *shape, seed=3), normal(*shape, seed=5)
    change = change / torch.linalg.matrix_norm(change, 2)
    for order in range(1, 7):
        found = float(analysis.cluster_mean_derivative(matrix, change, members, order))
        expected = by_contour(matrix, change, 3.0, 1.0, order, len(members))
        # The trapezoidal rule with 200 nodes is exact here; products of 7 resolvents of norm up to 1.2 keep 12 digits
        # of their size, and order! is 720.
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-10 * math.factorial(order))


def test_derivatives_are_those_of_sums_of_singular_values():
    matrix, change = with_values([2.0, 2.0, 2.0, 1.0], 4, 6, seed=1), normal(4, 6, seed=2)
    change = change / torch.linalg.matrix_norm(change, 2)
    x = 0.15 * np.cos(np.pi * np.arange(17) / 16)
    sums = [float(torch.linalg.svdvals(matrix + float(one) * change)[:3].sum()) / 3 for one in x]
    series = np.polynomial.Chebyshev.fit(x, sums, 16).convert(kind=np.polynomial.Polynomial).coef
    for order in range(1, 5):
        found = float(analysis.cluster_mean_derivative(matrix, change, [0, 1, 2], order))
        # The series has radius 1/2, so degree 16 leaves .3^17 = 1e-9; rounding grows as 1e-16 / .15^4 = 2e-13.
        assert found == pytest.approx(math.factorial(order) * series[order], rel=1e-6, abs=1e-7)
    # A single value of the cluster has no such series: its graph has a kink.
    kinks = [float(torch.linalg.svdvals(matrix + t * change)[0]) - 2 for t in (1e-5, -1e-5)]
    assert abs(kinks[0] + kinks[1]) > 1e-6


@pytest.mark.parametrize("matrix", [torch.eye(2), torch.tensor([[3.0, 1.0], [0.0, 1.0]])])
def test_the_nuclear_norm_of_two_values_is_a_root(matrix: Tensor):
    change = torch.tensor([[0.5, 1.0], [-0.25, 0.75]])
    # (s_1 + s_2)^2 = ||A||_F^2 + 2 det A is a polynomial of degree two along a line, while det A > 0.
    a, h = matrix.tolist(), change.tolist()
    square = [
        sum(a[i][j] ** 2 for i in (0, 1) for j in (0, 1)) + 2 * (a[0][0] * a[1][1] - a[0][1] * a[1][0]),
        2 * sum(a[i][j] * h[i][j] for i in (0, 1) for j in (0, 1))
        + 2 * (a[0][0] * h[1][1] + h[0][0] * a[1][1] - a[0][1] * h[1][0] - h[0][1] * a[1][0]),
        sum(h[i][j] ** 2 for i in (0, 1) for j in (0, 1)) + 2 * (h[0][0] * h[1][1] - h[0][1] * h[1][0]),
        *[0.0] * 5,
    ]
    root = [math.sqrt(square[0])]
    for n in range(1, 8):
        root.append((square[n] - sum(root[i] * root[n - i] for i in range(1, n))) / (2 * root[0]))
        found = float(analysis.cluster_mean_derivative(matrix, change, [0, 1], n))
        # A few hundred operations on numbers near 1, times n!.
        assert found == pytest.approx(math.factorial(n) * root[n] / 2, abs=1e-12 * math.factorial(n))


def test_a_cluster_of_one_is_a_simple_value():
    matrix, change = normal(4, 6, seed=7), normal(4, 6, seed=8)
    for k in range(4):
        for order in range(1, 6):
            found = float(analysis.cluster_mean_derivative(matrix, change, [k], order))
            # The same recursion in other coordinates; gaps are above a tenth, and each order divides by one.
            assert found == pytest.approx(analysis.derivative(matrix, [change] * order, k), rel=1e-9)


def test_the_first_order_is_the_slope_of_differences():
    matrix = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))
    change = torch.tensor([[0.3, 1.0, 0.2], [-0.4, -0.9, 0.1], [0.5, 0.7, 0.6]], dtype=torch.float64)
    found = analysis.cluster_mean_derivative(matrix, change, [0, 1])
    means = [torch.linalg.svdvals(matrix + x * change)[:2].mean() for x in (1e-6, -1e-6)]
    assert float(found) == pytest.approx(float(means[0] - means[1]) / 2e-6, abs=1e-8)


def test_bad_clusters_are_refused():
    matrix = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64))
    for members, word in (([0], "include all"), ([0, 2], "a run of"), ([3], "within 0 to 2"), ([], "a run of")):
        with pytest.raises(ArgumentError, match=word):
            analysis.cluster_mean_derivative(matrix, matrix, members)
    with pytest.raises(ArgumentError, match="at least 1"):
        analysis.cluster_mean_derivative(matrix, matrix, [0, 1], 0)
