"""Near-isometries: orthogonal matrices after a cast, where Gram iteration alone is slow."""

import pytest
import torch
from torch import Tensor

from lipkit.linops import Dense
from lipkit.norms import Gram, NearIsometry


def orthogonal(n: int, cols: int | None = None, seed: int = 0) -> Tensor:
    draw = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(draw).Q[:, :cols]


def excess(matrix: Tensor) -> tuple[float, float, float]:
    """Of the true norm over 1, of the residual bound, and of Gram iteration with six steps."""
    truth = torch.linalg.svdvals(matrix.double())[0]
    bounds = [method(Dense(matrix)).value for method in (NearIsometry(), Gram(6))]
    return float(truth - 1), float(bounds[0] - 1), float(bounds[1] - 1)


@pytest.mark.parametrize("n", [64, 256, 512])
@pytest.mark.parametrize(
    ("dtype", "cast"), [(torch.bfloat16, 2.3e-3), (torch.float16, 2.9e-4), (torch.float32, 3.6e-8)], ids=str
)
def test_an_orthogonal_matrix_after_a_cast(n: int, dtype: torch.dtype, cast: float) -> None:
    true, residual, gram = excess(orthogonal(n).to(dtype))
    # The largest singular value of rounding noise does not depend on the width; it is known to two digits.
    assert true == pytest.approx(cast, rel=0.3)
    # Two Gram steps on the residual, whose spectrum is a semicircle: n^(1/8) at worst, less than 2.2 here.
    assert true <= residual <= 2.2 * true
    assert gram >= 0.03


def test_the_figures_of_width_512() -> None:
    true, residual, gram = excess(orthogonal(512).to(torch.bfloat16))
    assert true == pytest.approx(2.3e-3, abs=2e-4)
    assert residual == pytest.approx(3.9e-3, abs=4e-4)
    assert gram == pytest.approx(5.2e-2, abs=6e-3)


@pytest.mark.parametrize("scale", [1e-30, 0.7, 1e30])
@pytest.mark.parametrize(("rows", "cols"), [(40, 40), (40, 7), (7, 40), (40, 1), (1, 1)])
def test_multiples_of_isometries_are_sharp(rows: int, cols: int, scale: float) -> None:
    matrix = scale * (orthogonal(rows, cols) if rows >= cols else orthogonal(cols, rows).mT)
    bound = NearIsometry()(Dense(matrix))
    # The error of the Gram product, n 2^-53 relative to ||W||_F^2 = n s: n^2 2^-53 = 2e-13 at n = 40, twice.
    assert scale * (1 - 1e-14) <= bound.value <= scale * (1 + 2e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_sound_on_any_matrix_and_differentiable(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((6, 6), (9, 4), (3, 8), (1, 5)):
        matrix = torch.randn(*shape, dtype=dtype, generator=generator)
        truth = torch.linalg.svdvals(matrix)[0]
        assert NearIsometry()(Dense(matrix)).value >= truth * (1 - 9 * 2.0**-53)
        assert torch.autograd.gradcheck(lambda w: NearIsometry()(Dense(w)).value, (matrix.requires_grad_(),))
