"""Counter-examples to formulas as printed in the literature, each beside the form that is used here instead."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lipkit.linops import Conv, Dense, Padding, materialize, symbol
from lipkit.nn import Spectral
from lipkit.nn.core.geometry import Geometry
from lipkit.norms import SVD, Gram, KernelIsometry, Power, PublishedGrid, SmallGrid, Toeplitz


def conv(kernel: Tensor, n: int, mode: Padding = Padding.ZEROS) -> Conv:
    return Conv(kernel, (n, n), (1, 1), ((1, 1), (1, 1)), (1, 1), 1, mode)


def norm(op: Conv) -> float:
    return float(torch.linalg.svdvals(materialize(op)).max())


def supremum(kernel: Tensor) -> float:
    """From below, on 240 points an axis."""
    return float(torch.linalg.svdvals(torch.fft.fft2(kernel, s=(240, 240)).permute(2, 3, 0, 1)).max())


# 3 x 3 kernels of one channel that hide between the points of a coarse grid, found by linear programming and rounded.
HIDDEN = {
    3: [[0.457, -0.21, 0.457], [-0.26, 0.111, -0.184], [0.432, -0.235, 0.432]],
    4: [[0.108, 0.335, 0.281], [0.496, -0.115, 0.068], [0.21, 0.102, -0.484]],
    5: [[0.327, -0.062, 0.322], [-0.031, 0.011, -0.086], [0.291, -0.055, 0.284]],
    6: [[0.333, 0.0, -0.333], [0.038, 0.0, -0.038], [-0.333, 0.0, 0.333]],
}
RATIOS = {3: 2.53, 4: 1.51, 5: 1.43, 6: 1.29}


@pytest.mark.parametrize("points", HIDDEN)
def test_the_published_small_grid_factor_fails(points: int) -> None:
    """(1 - alpha)^(-2^-t) with alpha = 2^t floor(k/2)/points, where the proof needs 2 alpha; here t = 1."""
    kernel = torch.tensor(HIDDEN[points], dtype=torch.float64)[None, None]
    on_grid = float(torch.fft.fft2(kernel, s=(points, points)).abs().max())
    assert supremum(kernel) / on_grid > RATIOS[points] > (1 - 2 / points) ** -0.5
    op = conv(kernel, 60)
    assert PublishedGrid(points, steps=0)(op).value == pytest.approx(on_grid * (1 - 2 / points) ** -0.5, rel=1e-12)
    # Not only the supremum: the convolution of an image of 60 x 60 is larger, by its lower bound.
    assert PublishedGrid(points, steps=0)(op).value < Power(200)(op).value
    for rtol in (0.5, 0.9):
        assert SmallGrid(rtol, SVD())(op).value >= supremum(kernel) * (1 - 1e-13)
    # The factor of this library, on the same grid.
    assert on_grid / math.cos(math.pi / points) ** 2 >= supremum(kernel)


def correlation(a: np.ndarray) -> np.ndarray:
    """sum_c a_ic * a_jc, by definition, for kernels (rows, cols, k, k)."""
    k = a.shape[-1]
    found = np.zeros((a.shape[0], a.shape[0], 2 * k - 1, 2 * k - 1))
    for u, v in itertools.product(range(k), repeat=2):
        shifted = found[:, :, k - 1 - u : 2 * k - 1 - u, k - 1 - v : 2 * k - 1 - v]
        shifted += np.einsum("icab,jc->ijab", a, a[:, :, u, v])
    return found


EXAMPLE = np.random.default_rng(1).standard_normal((4, 3, 3, 3))


def iterated(steps: int) -> tuple[np.ndarray, list[int]]:
    """The filter Gram of the example after `steps`, on the smaller side, and its supports on the way."""
    kernel, supports = EXAMPLE.transpose(1, 0, 2, 3), []
    for _ in range(steps):
        kernel = correlation(kernel)
        supports.append(kernel.shape[-1])
    return kernel, supports


def test_the_published_frobenius_form_of_the_filter_gram_fails() -> None:
    """(k^2 sum |K_N|^2)^(2^-(N+1)) falls below the norm; with n^2 output positions it does not."""
    kernel, supports = iterated(4)
    total, n = float((kernel**2).sum()), 8
    truth = norm(conv(torch.from_numpy(EXAMPLE), n))
    assert (9 * total) ** (2.0**-5) == pytest.approx(8.906, abs=5e-4)
    assert truth == pytest.approx(8.992, abs=5e-4)
    assert truth <= (n**2 * total) ** (2.0**-5)
    assert Toeplitz(4)(conv(torch.from_numpy(EXAMPLE), n)).value == pytest.approx(
        (n**2 * total) ** (2.0**-5), rel=1e-11
    )
    # The support doubles: (k - 1) 2^N + 1, not (k - 1) N + 1.
    assert supports == [5, 9, 17, 33]


def test_the_filter_gram_tends_to_the_supremum_and_not_to_the_norm() -> None:
    kernel, _ = iterated(4)
    rows = float(np.abs(kernel).sum((1, 2, 3)).max()) ** (2.0**-4)
    circular = conv(torch.from_numpy(EXAMPLE), 8, Padding.CIRCULAR)
    assert rows == pytest.approx(9.559, abs=5e-4)
    assert Toeplitz(4)(circular).value == pytest.approx(rows, rel=1e-11)
    limit = supremum(torch.from_numpy(EXAMPLE))
    assert limit == pytest.approx(9.370, abs=5e-4)
    assert norm(conv(torch.from_numpy(EXAMPLE), 8)) < 0.97 * limit <= rows


def test_orthogonal_on_one_torus_is_not_orthogonal_on_all() -> None:
    """n = k = 3: a unimodular transform at the nine points of the torus, and a norm of 1.63 under zero padding."""
    transform = torch.ones(3, 3, dtype=torch.complex128)
    for (i, j), sixths in (((0, 1), 1), ((1, 0), 1), ((1, 1), 2)):
        transform[i, j] = torch.exp(torch.tensor(1j * math.pi * sixths / 3, dtype=torch.complex128))
        transform[-i % 3, -j % 3] = transform[i, j].conj()
    kernel = torch.fft.ifft2(transform).real[None, None]
    circular = materialize(conv(kernel, 3, Padding.CIRCULAR))
    torch.testing.assert_close(circular @ circular.mT, torch.eye(9, dtype=torch.float64), rtol=0, atol=1e-14)
    assert norm(conv(kernel, 3)) > 1.578
    # The residual is of the kernel, not of a torus, and is not fooled: nor is the grid of 2 k - 1 = 5 points.
    assert KernelIsometry()(conv(kernel, 3)).value > 1.578
    assert torch.fft.fft2(kernel, s=(5, 5)).abs().max() > 1.2


def test_a_read_out_must_be_submultiplicative() -> None:
    """The largest entry is a norm too, and after any number of Gram products it is below the spectral norm."""
    matrix = torch.ones(2, 2, dtype=torch.float64)
    gram = matrix.mT @ matrix
    assert float(gram.abs().max()) ** 0.5 == pytest.approx(math.sqrt(2))
    assert float(torch.linalg.svdvals(matrix)[0]) == pytest.approx(2)
    assert Gram(1)(Dense(matrix)).value >= 2


def gaussian(rows: int, cols: int, seed: int) -> Tensor:
    return torch.randn(rows, cols, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_updating_both_vectors_at_once_loses_the_sign() -> None:
    """u from the old v and v from the old u are two chains that never meet: u'W v tends to -sigma half of the time."""
    matrix, count = gaussian(6, 5, 0), 600
    sigma = torch.linalg.svdvals(matrix)[0]
    u, v = gaussian(6, count, 1), gaussian(5, count, 2)
    for _ in range(400):
        u, v = matrix @ v, matrix.mT @ u
        u, v = u / u.norm(dim=0), v / v.norm(dim=0)
    found = ((matrix @ v) * u).sum(0)
    # (sigma_2/sigma_1)^400 is far below rounding here.
    torch.testing.assert_close(found.abs(), sigma.expand(count), rtol=1e-9, atol=0)
    negative = float((found < 0).double().mean())
    # A fair coin, five standard deviations.
    assert abs(negative - 0.5) <= 5 * 0.5 / math.sqrt(count)
    assert all(Power(400, seed=seed)(Dense(matrix)).value >= sigma * (1 - 1e-9) for seed in range(20))


def test_the_length_of_the_last_vector_is_the_square() -> None:
    """u <- u/|u|, v <- phi(u), u <- phi'(v): at the end |u| is sigma^2, and |v| is sigma."""
    matrix = gaussian(6, 5, 0)
    sigma = float(torch.linalg.svdvals(matrix)[0])
    u, v = gaussian(5, 1, 3), gaussian(6, 1, 4)
    for _ in range(400):
        u = u / u.norm()
        v = matrix @ u
        u = matrix.mT @ v
    assert float(u.norm()) == pytest.approx(sigma**2, rel=1e-9)
    assert abs(float(u.norm()) / sigma - 1) > 0.5
    assert float(v.norm()) == pytest.approx(sigma, rel=1e-9)
    assert Power(400)(Dense(matrix)).value == pytest.approx(sigma, rel=1e-9)


def test_the_ratio_of_power_iteration_is_below_one() -> None:
    """Printed as sigma_1/sigma_2; the vector converges with sigma_2^2/sigma_1^2 a step, the value with its square."""
    op = Dense(torch.diag(torch.tensor([1.0, 0.9], dtype=torch.float64)))
    start = torch.tensor([1.0, 1.0], dtype=torch.float64)
    for steps in (5, 10, 20):
        bound = Power(steps)(op, state=start)
        assert bound.state is not None
        slope = float(bound.state[1] / bound.state[0])
        assert slope == pytest.approx(0.9 ** (2 * steps), rel=1e-12)
        # ||A v||^2 = (1 + 0.81 slope^2)/(1 + slope^2).
        expected = math.sqrt((1 + 0.81 * slope**2) / (1 + slope**2))
        assert bound.value == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(("stride", "dilation", "measured"), [(2, 1, 1.0), (2, 2, 1.5), (3, 3, 3.0), (3, 2, 1.0)])
def test_the_factor_of_a_reshaped_kernel_under_dilation(stride: int, dilation: int, measured: float) -> None:
    """Dividing an orthogonal reshaped kernel by ceil(k/s) an axis does not make it a contraction if it is dilated."""
    # All weight on the taps that meet in one phase of the input: the worst kernel of unit norm.
    axis = torch.tensor([float(a * dilation % stride == 0) for a in range(3)], dtype=torch.float64)
    kernel = torch.outer(axis, axis)[None, None] / float(axis.sum())
    printed, right = math.ceil(3 / stride), math.ceil(3 * math.gcd(stride, dilation) / stride)
    # Padded so that the windows start once at every multiple of the stride.
    side = (0, 2 * dilation + 1 - stride)
    op = Conv(kernel, (12, 12), (stride, stride), (side, side), (dilation, dilation), 1, Padding.CIRCULAR)
    assert op.out_shape == (1, 12 // stride, 12 // stride)
    assert symbol(op).taps == (right, right)
    # Twelve points hold a constant input in every phase, where the norm is attained.
    assert norm(op) / printed == pytest.approx(measured, rel=1e-12)
    assert norm(op) / right == pytest.approx(1, rel=1e-12)


def test_the_spectral_norm_is_not_a_root_of_the_largest_singular_value() -> None:
    """Printed: ||M||^2 = sigma_max(M); a layer divided by that root keeps sigma_max^(1/2)."""
    matrix = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    printed = math.sqrt(float(torch.linalg.eigvalsh(matrix).max()))
    assert float(torch.linalg.vector_norm(matrix @ torch.tensor([1.0, 0.0], dtype=torch.float64))) == 2 > printed
    found = SVD()(Dense(matrix))
    # One rounding up of a decomposition of two numbers.
    assert 2 <= float(found.value) <= 2 * (1 + 1e-12)
    normalised = Spectral()(matrix[None], Geometry(1, 2, 2))[0]
    assert 0.9 < float(torch.linalg.matrix_norm(normalised, 2)) <= 1
    assert float(torch.linalg.matrix_norm(matrix / printed, 2)) == pytest.approx(math.sqrt(2))
