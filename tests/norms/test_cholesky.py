"""The Cholesky proof: as close as asked on hard spectra, and true however wrong the guess or the factor is."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import ArgumentError, NotProvenError
from lipkit.linops import Dense
from lipkit.norms import Cholesky


def gaussian(rows: int, cols: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, cols, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def with_values(values: Tensor, rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A matrix with these singular values and Haar vectors."""
    n = len(values)
    left, right = (torch.linalg.qr(gaussian(m, n, seed, dtype)).Q for m, seed in ((rows, 1), (n, 2)))
    return left @ torch.diag(values.to(dtype)) @ right.mH


N = 48
SPECTRA: dict[str, Tensor] = {
    "near-equal": 1 - torch.linspace(0, 1e-9, N, dtype=torch.float64),
    "equal": torch.ones(N, dtype=torch.float64),
    "one above a cluster": torch.cat([torch.tensor([1.0]), torch.full((N - 1,), 1 - 1e-7)]).double(),
    "linear": torch.linspace(1, 1 / N, N, dtype=torch.float64),
    "rank one": torch.eye(N, dtype=torch.float64)[0],
    "rank two": torch.eye(N, dtype=torch.float64)[:2].sum(0),
    "geometric": 0.5 ** torch.arange(N, dtype=torch.float64),
    "one far above noise": torch.cat([torch.tensor([1.0]), torch.full((N - 1,), 1e-12)]).double(),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("rtol", [1e-1, 1e-2, 1e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("name", SPECTRA)
def test_within_the_tolerance_asked_for(name: str, rtol: float, dtype: torch.dtype) -> None:
    matrix = with_values(SPECTRA[name], 60, dtype)
    truth = torch.linalg.svdvals(matrix)[0]
    for one in (matrix, matrix.mH):
        bound = Cholesky(rtol)(Dense(one))
        assert bound.kind is Kind.UPPER
        assert bound.value >= truth * (1 - 60 * 2.0**-53)
        # t = (1 + rtol) theta, and the slack of the proof, about n^2 2^-53 (in float32 for the factor: n 2^-24).
        assert bound.value <= truth * (1 + rtol + (1e-5 if rtol >= 1e-3 else 1e-12))
        assert bound.lower is not None
        # The guess was within 2 rtol of the square with 95 percent, from this start.
        assert truth * (1 - 2 * rtol) <= bound.lower.value <= truth


def test_an_orthogonal_matrix_and_a_zero_one() -> None:
    bound = Cholesky()(Dense(torch.linalg.qr(gaussian(256, 256)).Q))
    # The proof's slack is a few n^2 2^-53 = 7e-12.
    assert 1 <= bound.value <= 1 + 1e-6 + 1e-10
    zero = Cholesky()(Dense(torch.zeros(6, 4)))
    assert zero.value == 0
    assert zero.lower is not None
    assert zero.lower.value == 0


@pytest.mark.parametrize("exponent", [-60, -40, -20, 20, 40, 60])
@pytest.mark.parametrize("rtol", [1e-2, 1e-6])
def test_the_tolerance_holds_at_moderate_scales(rtol: float, exponent: int) -> None:
    matrix = gaussian(20, 15) * 2.0**exponent
    truth = torch.linalg.svdvals(matrix)[0]
    # As above; float32 guesses must not overflow on the way.
    assert truth <= Cholesky(rtol)(Dense(matrix)).value <= truth * (1 + rtol + 1e-5)


@pytest.mark.parametrize("rtol", [1e-2, 1e-6])
@pytest.mark.parametrize("factor", [0.0, 1e-12, 1e-3, 0.5, 0.999, 1 - 1e-7, 3.0, 1e3])
def test_a_wrong_guess_still_gives_a_true_bound(factor: float, rtol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    guess = Cholesky._guess

    def wrong(self: Cholesky, gram: Tensor) -> object:
        found = guess(self, gram)
        return dataclasses.replace(found, value=found.value * factor)

    monkeypatch.setattr(Cholesky, "_guess", wrong)
    for matrix in (gaussian(20, 12), with_values(SPECTRA["near-equal"], 60), with_values(SPECTRA["rank one"], 60)):
        truth = torch.linalg.svdvals(matrix)[0]
        bound = Cholesky(rtol)(Dense(matrix))
        assert bound.value >= truth * (1 - 60 * 2.0**-53)
        # Raised by factors of up to 9 in t^2 until the proof succeeds, or where the guess was: never far beyond both.
        assert bound.value <= truth * max(1, factor) * 9


def test_the_wrong_block_is_no_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    guess = Cholesky._guess
    monkeypatch.setattr(
        Cholesky, "_guess", lambda self, gram: dataclasses.replace(found := guess(self, gram), block=0 * found.block)
    )
    blocks = torch.stack([0.1 * gaussian(6, 4, 1), gaussian(6, 4, 2)]).unsqueeze(0)
    enclosure = Cholesky().enclose(blocks)
    truth = torch.linalg.svdvals(blocks).max()
    assert enclosure.log_upper[0].exp() >= truth * (1 - 6 * 2.0**-53)
    assert enclosure.log_lower[0].exp() <= truth


FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": torch.zeros_like,
    "identity": lambda r: torch.eye(r.shape[-1], dtype=r.dtype).expand_as(r),
    "off by a percent": lambda r: 1.01 * r,
    "a row lost": lambda r: torch.cat([r[..., :-1, :], torch.zeros_like(r[..., -1:, :])], -2),
    "not a number": lambda r: r * torch.nan,
}


@pytest.mark.parametrize("rtol", [1e-2, 1e-6])
@pytest.mark.parametrize("fault", FACTORS)
def test_a_wrong_factor_is_counted(fault: str, rtol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    library = torch.linalg.cholesky_ex

    def faulty(matrix: Tensor, **options: bool) -> tuple[Tensor, Tensor]:
        factor, info = library(matrix, **options)
        return FACTORS[fault](factor), torch.zeros_like(info)

    matrix = gaussian(20, 12)
    truth = torch.linalg.svdvals(matrix)[0]
    monkeypatch.setattr(torch.linalg, "cholesky_ex", faulty)
    try:
        bound = Cholesky(rtol)(Dense(matrix))
    except NotProvenError:
        assert fault == "not a number"
        return
    assert fault != "not a number"
    assert bound.value >= truth * (1 - 20 * 2.0**-53)


def test_gradient_and_refusals() -> None:
    matrix = gaussian(9, 6).requires_grad_()
    u, _, vh = torch.linalg.svd(matrix.detach())
    (found,) = torch.autograd.grad(Cholesky(1e-9)(Dense(matrix)).value, matrix)
    # The value is (1 + rtol) sigma; vectors converge like the root of their value's error.
    torch.testing.assert_close(found, torch.outer(u[:, 0], vh[0]), rtol=0, atol=1e-4)
    for rtol in (0.0, 1e-10, 1.0, -1e-3):
        with pytest.raises(ArgumentError, match=r"Cholesky\.rtol"):
            Cholesky(rtol)
    with pytest.raises(ArgumentError, match=r"Cholesky\.steps"):
        Cholesky(steps=0)
