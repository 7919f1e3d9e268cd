"""The automatic choice: which method for which operator, how close it comes, and the front door."""

import pytest
import torch
from torch import Tensor, nn

from lipkit import spectral_norm
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, LipkitError, ShapeError, UnsupportedError
from lipkit.linops import (
    AvgPool,
    BatchNorm,
    Conv,
    Dense,
    Diagonal,
    Index,
    LinearFunction,
    LinearOperator,
    Padding,
    Permute,
    Reshape,
    materialize,
)
from lipkit.norms import SVD, Auto, Cholesky, Circulant, Frobenius, Lanczos, Monomial, Norm, SmallGrid


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def conv(channels: int, n: int, mode: Padding = Padding.ZEROS, kernel: int = 3, stride: int = 1) -> Conv:
    side = (kernel - stride) // 2
    weight = gaussian(channels, channels, kernel, kernel)
    return Conv(weight, (n, n), (stride, stride), ((side, side),) * 2, (1, 1), 1, mode)


LARGE = conv(64, 16)
# One window over the whole image: 100 x 50176 entries.
WINDOW = Conv(gaussian(100, 1024, 7, 7), (7, 7), (1, 1), ((0, 0),) * 2, (1, 1))
CHOICES: list[tuple[LinearOperator, type[Norm], str]] = [
    (Diagonal(torch.ones(3), (3,)), Monomial, "one entry in each row"),
    (BatchNorm(None, torch.ones(2), 1e-5, (2, 4)), Monomial, "one entry in each row"),
    (Permute((2, 3), (1, 0)), Monomial, "one entry in each row"),
    (Reshape((2, 3), (6,)), Monomial, "one entry in each row"),
    (Index(torch.tensor([0, 0]), (3,)), Monomial, "one entry in each row"),
    (Dense(gaussian(5, 900)), SVD, "5 singular values"),
    (Dense(gaussian(200, 100)), Cholesky, "side of 100"),
    (conv(2, 4), SVD, "32 singular values"),
    (conv(3, 9), Cholesky, "side of 243"),
    (conv(4, 40, Padding.CIRCULAR), Circulant, "symbol on the torus (40, 40)"),
    (conv(80, 8, Padding.CIRCULAR), Circulant, "symbol on the torus (8, 8)"),
    (conv(3, 224, kernel=16, stride=16), Circulant, "exactly"),
    (AvgPool(3, (64, 64), (2, 2), (2, 2), (0, 0), 4), Circulant, "exactly"),
    (conv(8, 56), SmallGrid, "torus of (57, 57)"),
    (LARGE, Lanczos, "small torus (17, 17)"),
    (WINDOW, Cholesky, "one position, so a matrix with a side of 100"),
    (Reshape((100, 1, 1), (100,)) @ WINDOW, Cholesky, "one position"),
    (WINDOW.T, Cholesky, "one position"),
    (LARGE @ LARGE, Lanczos, "without structure"),
    (LinearFunction(lambda x, w: x @ w, (5000,), (5000,), (gaussian(1, 1),)), Lanczos, "without structure"),
]


@pytest.mark.parametrize(
    ("op", "method", "why"), CHOICES, ids=lambda x: str(x) if isinstance(x, LinearOperator) else ""
)
def test_the_choice_and_its_reason(op: LinearOperator, method: type[Norm], why: str) -> None:
    found = Auto().select(op)
    assert type(found.method) is method
    assert why in found.why


def test_wide_channels_are_factorised_block_by_block() -> None:
    narrow, wide = (Auto().select(conv(c, 8, Padding.CIRCULAR)).method for c in (8, 80))
    assert narrow == Circulant(SVD())
    assert isinstance(wide, Circulant)
    assert isinstance(wide.inner, Cholesky)


@pytest.mark.parametrize(
    "op",
    [
        Dense(gaussian(90, 70)),
        conv(3, 9),
        conv(4, 12, Padding.CIRCULAR),
        conv(2, 12, Padding.REFLECT),
        conv(6, 12, stride=2, kernel=4),
        conv(3, 6) @ conv(3, 6),
    ],
    ids=str,
)
@pytest.mark.parametrize("auto", [Auto(), Auto(rtol=1e-4), Auto(failure=0)], ids=repr)
def test_as_close_as_asked(op: LinearOperator, auto: Auto) -> None:
    truth = torch.linalg.svdvals(materialize(op))[0]
    bound = auto(op)
    assert bound.kind.certifies
    # Operators small enough for a dense proof; the reference is off by n 2^-53 at most.
    assert truth * (1 - 900 * 2.0**-53) <= bound.value <= truth * (1 + auto.rtol)


def test_a_window_that_is_too_large_a_matrix_is_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipkit.norms.auto.ENTRIES", 100 * 50176 - 1)
    assert not isinstance(Auto().select(WINDOW).method, Cholesky)


def test_a_window_over_the_whole_image_is_its_kernel_as_a_matrix() -> None:
    op = Reshape((6, 1, 1), (6,)) @ Conv(gaussian(6, 5, 3, 4), (3, 4), (1, 1), ((0, 0),) * 2, (1, 1))
    units = torch.eye(60, dtype=torch.float64).reshape(60, 5, 3, 4)
    # The same numbers, added to zeros.
    assert torch.equal(materialize(op), op.apply(units).mT)
    padded = Conv(gaussian(6, 5, 3, 3), (2, 2), (2, 2), ((1, 0),) * 2, (1, 1))
    assert torch.allclose(materialize(padded), padded.apply(torch.eye(20).double().reshape(20, 5, 2, 2)).flatten(1).mT)


def test_the_bound_names_the_method_that_made_it() -> None:
    assert Auto()(Dense(gaussian(4, 3))).method == SVD()
    assert isinstance(Auto()(Dense(gaussian(90, 70))).method, Cholesky)


def test_without_failure_everything_is_deterministic_or_refused() -> None:
    auto = Auto(failure=0)
    assert isinstance(auto.select(LARGE).method, SmallGrid)
    small = Conv(gaussian(3, 3, 3, 3), (14, 14), (1, 1), ((1, 1), (1, 1)), (1, 1))
    bounds = [auto(small) for _ in range(2)]
    assert bounds[0].value == bounds[1].value
    assert bounds[0].failure == 0
    with pytest.raises(UnsupportedError, match=r"Auto\(failure=1e-9\)"):
        auto.select(LARGE @ LARGE)


def test_the_randomised_choice_carries_its_failure() -> None:
    weight = gaussian(4, 4, 3, 3)
    layer = Conv(weight, (24, 24), (1, 1), ((1, 1), (1, 1)), (1, 1))
    bound = Auto(failure=1e-6)(layer @ layer)
    assert isinstance(bound.method, Lanczos)
    assert bound.failure == 1e-6
    assert bound.lower is not None
    assert bound.lower.value <= bound.value <= bound.lower.value * 1.01


def test_many_operators_are_chosen_for_group_by_group() -> None:
    ops = [Dense(gaussian(4, 3)), conv(2, 4), Dense(gaussian(4, 3, seed=1)), Diagonal(torch.tensor([2.0]), (3,))]
    for bound, op in zip(Auto().many(ops), ops, strict=True):
        truth = torch.linalg.svdvals(materialize(op.to(torch.float64)))[0]
        # Exact methods on at most 32 unknowns.
        assert bound.value == pytest.approx(float(truth), rel=1e-12)


def test_the_front_door() -> None:
    linear = nn.Linear(6, 4, dtype=torch.float64)
    truth = torch.linalg.svdvals(linear.weight.detach())[0]
    bound = spectral_norm(linear)
    assert bound.kind is Kind.EXACT
    # A 6 x 4 decomposition: a few roundings.
    assert bound.value.item() == pytest.approx(float(truth), rel=1e-13)
    bound.value.backward()
    assert linear.weight.grad is not None
    assert bool(torch.isfinite(linear.weight.grad).all())
    assert spectral_norm(Dense(linear.weight.detach())).value == bound.value
    assert isinstance(spectral_norm(linear, method=Frobenius()).method, Frobenius)
    layer = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", dtype=torch.float64)
    found = spectral_norm(layer, (3, 8, 8))
    blocks = torch.fft.fft2(layer.weight.detach(), s=(8, 8)).permute(2, 3, 0, 1)
    assert found.value.item() == pytest.approx(float(torch.linalg.svdvals(blocks).max()), rel=1e-12)


def test_float32_modules_get_float64_bounds() -> None:
    linear = nn.Linear(40, 30)
    bound = spectral_norm(linear)
    assert bound.value.dtype == torch.float64
    assert bound.value >= torch.linalg.svdvals(linear.weight.detach().double())[0] * (1 - 40 * 2.0**-53)


def test_the_front_door_says_what_is_missing() -> None:
    with pytest.raises(ShapeError, match=r"Conv2d depends on the shape of its input; give in_shape"):
        spectral_norm(nn.Conv2d(3, 4, 3))
    with pytest.raises(LipkitError, match="ReLU"):
        spectral_norm(nn.ReLU(), (4,))
    with pytest.raises(LipkitError):
        spectral_norm(nn.Linear(6, 4), (5,))


@pytest.mark.parametrize("bad", [{"rtol": 0.0}, {"rtol": 1.0}, {"rtol": 1e-7}, {"failure": 1.0}, {"failure": -0.1}])
def test_refusals(bad: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        Auto(**bad)
