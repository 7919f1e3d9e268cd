"""Taylor series of singular values: exact series, a complex circle, and every remainder against the value itself."""

import cmath
import math

import mpmath
import pytest
import torch
from torch import Tensor

from lipkit import analysis
from lipkit.analysis.singular_values.decomposition import decompose
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.unchecked import unchecked

A = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
H = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
# The power series of the larger root of s^4 - tr(A(x)'A(x)) s^2 + det(A(x))^2 = 0, in fractions.
SERIES = (3, 1, 3 / 16, -5 / 64, 27 / 1024, -17 / 4096, -99 / 32768)


def random_matrices(seed: int, count: int) -> list[Tensor]:
    """`count` matrices of one random shape between 2 x 2 and 7 x 7."""
    source = torch.Generator().manual_seed(seed)
    rows, columns = torch.randint(2, 8, (2,), generator=source).tolist()
    return list(torch.randn(count, rows, columns, dtype=torch.float64, generator=source))


def embedding(matrix: Tensor) -> Tensor:
    rows, columns = matrix.shape
    zero = matrix.new_zeros
    return torch.cat([torch.cat([zero(rows, rows), matrix], 1), torch.cat([matrix.mT, zero(columns, columns)], 1)])


def printed_coefficients(matrix: Tensor, change: Tensor, order: int) -> list[float]:
    """The published closed form: sum_p (-1)^(p-1) <w, T (S T)^(p-1) w> for a linear path, which has only p = n.

    S is printed without the eigenvalue -sigma_k.
    """
    values, vectors = torch.linalg.eigh(embedding(matrix.double()))
    w, moved = vectors[:, -1], embedding(change.double())
    weights = torch.cat([values.new_zeros(1), 1 / (values[1:-1] - values[-1]), values.new_zeros(1)])
    resolvent = (vectors * weights) @ vectors.mT
    found, current = [], moved @ w
    for n in range(1, order + 1):
        found.append((-1) ** (n - 1) * float(w @ current))
        current = moved @ resolvent @ current
    return found


def circle_coefficients(matrices: list[Tensor], k: int, order: int, radius: float) -> Tensor:
    """Coefficients by Cauchy's integral: an eigenvalue of T(radius e^(i phi)), followed from x = 0."""
    start = torch.linalg.svdvals(matrices[0])[k].to(torch.complex128)
    points, values = 64, []
    for position in range(points):
        x = radius * cmath.exp(2j * math.pi * position / points)
        total = sum((x**j * m for j, m in enumerate(matrices)), torch.zeros_like(matrices[0], dtype=torch.complex128))
        spectrum = torch.linalg.eigvals(embedding(total))
        values.append(spectrum[(spectrum - start).abs().argmin()])
    transform = torch.fft.fft(torch.stack(values)) / points
    return transform.real[: order + 1] / radius ** torch.arange(order + 1, dtype=torch.float64)


def test_the_exact_series():
    found = analysis.taylor(A, [H], order=6)
    # A few dozen operations on numbers of at most 3.
    assert torch.allclose(found.coefficients, torch.tensor(SERIES, dtype=torch.float64), rtol=0, atol=1e-14)
    assert found.radius == pytest.approx(1 / math.sqrt(2), rel=1e-12)  # d = 2, ||H|| = sqrt 2


def test_the_printed_theorem_is_right_to_order_two_only():
    printed = printed_coefficients(A, H, 5)
    assert printed == pytest.approx([1, 3 / 16, 0, 0, 0], abs=1e-14)
    assert printed[:2] == pytest.approx(SERIES[1:3], abs=1e-14)
    assert abs(printed[2] - SERIES[3]) > 0.07


def test_a_matrix_with_more_rows_than_columns():
    matrix, change = torch.zeros(2, 3, 2, dtype=torch.float64)
    matrix[0, 0], matrix[1, 1], change[2, 0] = 2.0, 1.0, 1.0
    # The series of the root of 4 + x^2.
    expected = torch.tensor([2, 0, 1 / 4, 0, -1 / 64], dtype=torch.float64)
    assert torch.allclose(analysis.taylor(matrix, [change], order=4).coefficients, expected, rtol=0, atol=1e-15)


def test_the_term_of_the_negative_branch_counts_from_order_four():
    matrices = random_matrices(3, 2)
    at = decompose(matrices[0], 0)
    dense = embedding(matrices[0])
    w = torch.cat([at.u, at.v]) / 2**0.5
    vector = torch.randn(sum(matrices[0].shape), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = torch.cat(at.resolvent(vector[: len(at.u)], vector[len(at.u) :]))
    assert abs(float(w @ found)) < 1e-13
    assert torch.allclose(dense @ found - at.value * found, vector - w * (w @ vector), atol=1e-12)
    mirror = torch.cat([at.u, -at.v]) / 2**0.5
    image = torch.cat(at.resolvent(mirror[: len(at.u)], mirror[len(at.u) :]))
    assert torch.allclose(image, -mirror / (2 * at.value), atol=1e-14)  # the published sum leaves this at zero


def coefficients_without_the_mirror(matrix: Tensor, change: Tensor, order: int) -> list[float]:
    """The right recursion with the reduced resolvent as printed, without the eigenvalue -sigma_k."""
    values, vectors = torch.linalg.eigh(embedding(matrix.double()))
    weights = torch.cat([values.new_zeros(1), 1 / (values[1:-1] - values[-1]), values.new_zeros(1)])
    resolvent, moved = (vectors * weights) @ vectors.mT, embedding(change.double())
    w, found = [vectors[:, -1]], []
    for q in range(1, order + 1):
        image = moved @ w[q - 1]
        found.append(float(w[0] @ image))
        w.append(-resolvent @ (image - sum((found[j - 1] * w[q - j] for j in range(1, q)), torch.zeros_like(image))))
    return found


def test_the_printed_resolvent_is_wrong_from_order_four_on():
    printed = coefficients_without_the_mirror(A, H, 4)
    assert printed[:3] == pytest.approx(SERIES[1:4], abs=1e-14)
    assert printed[3] == pytest.approx(21 / 1024, abs=1e-14)
    assert abs(printed[3] - SERIES[4]) > 5e-3


@pytest.mark.parametrize("seed", range(20))
def test_coefficients_are_those_of_a_complex_circle(seed: int):
    matrices = random_matrices(seed, 3)
    for k in range(min(matrices[0].shape)):
        found = analysis.taylor(matrices[0], matrices[1:], k, order=6)
        gap = found.start.gap
        radius = 0.5 * found.radius
        expected = circle_coefficients(matrices, k, 6, radius)
        # On the circle |x| = radius both are sums of 64 eigenvalues, each good to 1e-13 of the matrix; the aliasing
        # error is (1/2)^58. In units of the circle, and for gaps down to 1e-3 of a matrix of norm 5.
        scaled = (found.coefficients - expected).abs() * radius ** torch.arange(7, dtype=torch.float64)
        assert float(scaled.max()) < 1e-11 * max(1.0, 1e-2 / gap)


def test_remainders_bound_every_error_of_300_random_matrices():
    closest = 0.0
    for seed in range(300):
        matrices = random_matrices(1000 + seed, 1 + 1 + seed % 3)
        k = seed % min(matrices[0].shape)
        order = 1 + seed % 6
        found = analysis.taylor(matrices[0], matrices[1:], k, order)
        for share in (0.01, 0.2, 0.5, 0.9, 1.5):
            for x in (share * found.radius, -share * found.radius):
                moved = sum((x**j * m for j, m in enumerate(matrices)), torch.zeros_like(matrices[0]))
                error = abs(float(torch.linalg.svdvals(moved)[k]) - found(x))
                # The reference itself may be off by a few roundings of the largest singular value.
                doubt = 16 * 2**-53 * float(torch.linalg.matrix_norm(moved, 2))
                assert error <= found.remainder(x) + doubt
                if share < 1:
                    assert error <= found.truncation(x) + 100 * doubt * max(1, 1 / found.start.gap)
                if error > 1e-8:
                    closest = max(closest, error / found.remainder(x))
    assert 0.9 < closest <= 1  # sharp, so half the bound would fail


def test_the_remainder_holds_far_outside_and_never_ends_in_nan():
    found = analysis.taylor(A, [H], order=4)
    for x in (-3.0, 5.0, 40.0):
        truth = float(torch.linalg.svdvals(A.double() + x * H.double())[0])
        assert abs(truth - found(x)) <= found.remainder(x)
    assert found.remainder(1e300) == math.inf
    with pytest.raises(ArgumentError, match="got NaN"):
        found.remainder(math.nan)
    with pytest.raises(ArgumentError, match="use `remainder`"):
        found.truncation(0.8)


def test_a_shrunken_gap_or_norm_would_be_noticed():
    """The proof uses both sides: Weyl's bound is attained by H = u v'."""
    at = decompose(A, 0)
    change = torch.outer(at.u, at.v)
    found = analysis.taylor(A, [change], order=0)
    assert found.remainder(0.5) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_homogeneity(seed: int):
    matrix, first, second = random_matrices(50 + seed, 3)
    gap = decompose(matrix, 0).gap
    # Derivatives of order n are about gap^(1-n); 1e-11 of that allows for the cancellation of polarisation.
    assert analysis.derivative(matrix, [matrix]) == pytest.approx(float(torch.linalg.svdvals(matrix)[0]), rel=1e-13)
    assert abs(analysis.derivative(matrix, [matrix, first])) < 1e-11 / gap
    curved = analysis.derivative(matrix, [first, first])
    assert analysis.derivative(matrix, [matrix, first, first]) == pytest.approx(-curved, abs=1e-10 / gap**2)
    assert analysis.derivative(matrix, [first, second, first]) == pytest.approx(
        analysis.derivative(matrix, [second, first, first]), abs=1e-10 / gap**2
    )


def test_mixed_derivatives_against_autograd():
    matrix, *changes = random_matrices(7, 4)

    def value(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.linalg.svdvals(matrix + a * changes[0] + b * changes[1] + c * changes[2])[1]

    zeros = [torch.zeros((), dtype=torch.float64, requires_grad=True) for _ in range(3)]
    slope = torch.autograd.grad(value(*zeros), zeros[0], create_graph=True)[0]
    second = torch.autograd.grad(slope, zeros[1], create_graph=True)[0]
    third = torch.autograd.grad(second, zeros[2])[0]
    assert analysis.derivative(matrix, changes[:2], k=1) == pytest.approx(float(second.detach()), rel=1e-10)
    assert analysis.derivative(matrix, changes, k=1) == pytest.approx(float(third), rel=1e-8)


def test_derivatives_of_order_three_and_four_by_autograd_over_the_published_experiment():
    """The published trials have 6 x 10 matrices; orders 3 and 4 are where the printed theorem fails."""
    source = torch.Generator().manual_seed(1)
    for draw in (torch.randn, torch.rand):
        matrix, change = draw(2, 6, 10, dtype=torch.float64, generator=source)
        for k in range(6):
            x = torch.zeros((), dtype=torch.float64, requires_grad=True)
            current = torch.linalg.svdvals(matrix + x * change)[k]
            expected = []
            for _ in range(4):
                current = torch.autograd.grad(current, x, create_graph=True)[0]
                expected.append(float(current.detach()))
            found = [analysis.derivative(matrix, [change] * n, k) for n in range(1, 5)]
            # Autograd through the decomposition loses digits like powers of 1 / gap, and so does nobody else.
            gap = decompose(matrix, k).gap
            for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-11 * max(1, 1 / gap) ** (2 * n))


def test_derivatives_of_singular_vectors():
    matrix, change = random_matrices(12, 2)
    step = 1e-5
    for k in range(min(matrix.shape)):
        at = decompose(matrix, k)
        du, dv = analysis.singular_vector_derivatives(matrix, change, k)
        assert abs(float(du @ at.u)) < 1e-12
        assert abs(float(dv @ at.v)) < 1e-12
        ends = [decompose(matrix + sign * step * change, k) for sign in (1, -1)]
        signs = [torch.sign(end.u @ at.u) for end in ends]
        numeric = [
            (signs[0] * a - signs[1] * b) / (2 * step) for a, b in ((ends[0].u, ends[1].u), (ends[0].v, ends[1].v))
        ]
        # Central differences: third derivatives times 1e-10, here below 1e-6.
        assert torch.allclose(numeric[0], du, atol=1e-6)
        assert torch.allclose(numeric[1], dv, atol=1e-6)


def test_what_has_no_series_is_refused():
    double = torch.diag(torch.tensor([2.0, 2.0, 1.0]))
    change = torch.ones(3, 3)
    with pytest.raises(ArgumentError, match="gap to its neighbour is 0"):
        analysis.taylor(double, [change])
    # The others may be repeated.
    assert analysis.taylor(double, [change], k=2).coefficients[0] == 1
    with pytest.raises(ArgumentError, match="is zero"):
        analysis.taylor(torch.diag(torch.tensor([1.0, 0.0])), [torch.ones(2, 2)], k=1)
    with pytest.raises(ArgumentError, match="is zero"):
        analysis.taylor(torch.zeros(2, 2), [torch.ones(2, 2)])
    with pytest.raises(ArgumentError, match="0 to 2, got k = 3"):
        analysis.taylor(double, [change], k=3)
    with pytest.raises(ArgumentError, match="0 to 2, got k = -1"):
        analysis.derivative(double, [change], k=-1)
    with pytest.raises(NonFiniteError, match="H_1 has NaN"):
        analysis.taylor(torch.diag(torch.tensor([2.0, 1.0])), [torch.full((2, 2), math.nan)])
    with pytest.raises(NonFiniteError, match="A has NaN"):
        analysis.taylor(torch.full((2, 2), math.inf), [H])
    with pytest.raises(NonFiniteError, match="rescale"):
        analysis.taylor(A.double() * 1e150, [H])
    with unchecked(), pytest.raises(ShapeError, match="shape of A"):
        analysis.taylor(A, [change])
    with unchecked(), pytest.raises(ShapeError, match="real matrix"):
        analysis.taylor(torch.ones(3), [H])
    with pytest.raises(ArgumentError, match="at least one direction"):
        analysis.taylor(A, [])
    with pytest.raises(ArgumentError, match="order of a series"):
        analysis.taylor(A, [H], order=-1)


def test_trivial_series():
    still = analysis.taylor(A, [torch.zeros(2, 2)], order=2)
    assert still.radius == math.inf
    assert still.remainder(7.0) < 1e-12
    assert analysis.derivative(A, []) == 3
    assert analysis.derivative(A, [H, torch.zeros(2, 2)]) == 0
    one = analysis.taylor(torch.tensor([[2.0]]), [torch.tensor([[1.0]])], order=2)
    assert one.coefficients.tolist() == pytest.approx([2, 1, 0])
    assert one.radius == pytest.approx(2, rel=1e-12)  # d = 4: the mirror value is the only other one


@pytest.mark.parametrize("size", [1e-310, 1e-170, 1e160])
def test_directions_of_any_size_have_their_derivatives(size: float):
    matrix, direction = torch.diag(torch.tensor([2.0, 1.0])), torch.full((2, 2), size, dtype=torch.float64)
    # Numbers below the normal ones have fewer digits.
    digits = 1e-12 if size > 1e-300 else 1e-10
    assert analysis.derivative(matrix, [direction]) == pytest.approx(size, rel=digits)
    # D^2 sigma_1[X, Y] of diag(2, 1) is (2 (x12 y12 + x21 y21) + x12 y21 + x21 y12) / 3 = 2 here.
    other = torch.full((2, 2), min(1 / size, 1e300), dtype=torch.float64)
    expected = 2 * size * float(other[0, 0])
    assert analysis.derivative(matrix, [direction, other]) == pytest.approx(expected, rel=digits)


def test_what_leaves_the_range_of_floats_is_refused():
    matrix, direction = torch.diag(torch.tensor([2.0, 1.0])), torch.full((2, 2), 1e160, dtype=torch.float64)
    with pytest.raises(NonFiniteError, match="smaller unit"):
        analysis.taylor(matrix, [direction])
    with pytest.raises(NonFiniteError, match="order 2 is out of the range"):
        analysis.derivative(matrix, [direction, direction])


@pytest.mark.parametrize("seed", range(8))
def test_remainders_hold_at_more_digits(seed: int):
    """Near pairs, high orders, sizes far from one, x up to and beyond the radius, against 50 digits."""
    draws = torch.Generator().manual_seed(seed)
    matrix = torch.randn(3, 4, generator=draws, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values[1] = values[0] * (1 - 10.0 ** -(1 + seed % 7))
    matrix = (left * values) @ right * 10.0 ** (10 * (seed % 5 - 2))
    single = seed % 2 == 1
    size = 10.0 ** (4 * seed - 14 if single else 40 * seed - 120)
    path = [size * torch.randn(3, 4, generator=draws, dtype=torch.float64) for _ in range(2)]
    if single:
        matrix, path = matrix.float(), [path[0].float()]
    series = analysis.taylor(matrix, path, k=seed % 2, order=[1, 2, 5][seed % 3])
    with mpmath.workdps(50):
        for share in (1e-6, 0.3, 0.99, 1.0, -1.0, 3.0):
            x = series.radius * share
            exact = mpmath.matrix(matrix.double().tolist())
            for power, change in enumerate(path, start=1):
                exact = exact + mpmath.matrix(change.double().tolist()) * mpmath.mpf(x) ** power
            truth = sorted(mpmath.svd_r(exact, compute_uv=False), reverse=True)[seed % 2]
            assert abs(truth - mpmath.mpf(series(x))) <= series.remainder(x)
