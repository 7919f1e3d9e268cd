"""Complex values between a real input and a real output: constants against dense Jacobians, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import lipkit
from lipkit import Ball, Bound, Kind
from lipkit.bounds import DAG, Auto, GradientAscent
from lipkit.errors import CaptureError, NeedsRegion
from lipkit.norms import SVD
from lipkit.trace.capture import capture
from support.networks.short_models import model

Run = Callable[..., Tensor]


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def jacobian_norm(module: nn.Module, x: Tensor) -> float:
    """The largest singular value of the derivative at x, by autograd through the model itself."""
    found = torch.autograd.functional.jacobian(module, x)
    assert isinstance(found, Tensor)
    return float(torch.linalg.matrix_norm(found.reshape(-1, x.numel()), 2))


def assert_constant(run: Run, x: Tensor, slack: float = 1e-9) -> None:
    """The bound of a linear model is its Jacobian's norm, up to what roundings of float64 are allowed for."""
    module = model(lambda _self, x: run(x))
    network = capture(module, x)
    assert torch.allclose(network(x).reshape(-1), module(x).reshape(-1), rtol=0, atol=1e-11 * float(x.abs().sum()))
    truth = jacobian_norm(module, x)
    assert truth * (1 - 1e-12) <= float(DAG(SVD())(network).value) <= truth * (1 + slack) + 1e-12


def pairs(z: Tensor) -> Tensor:
    return torch.view_as_real(z.resolve_conj())


# Every example is an export of torch.
few = settings(max_examples=15)
NORMS = st.sampled_from(["backward", "ortho", "forward"])
SEEDS = st.integers(0, 2**16)


@few
@given(
    n=st.integers(1, 12), length=st.none() | st.integers(1, 14), norm=NORMS, rows=st.integers(1, 3), seed=SEEDS,
    axis=st.sampled_from([1, 2, -1, -2]), part=st.sampled_from([torch.real, torch.imag, pairs]),
    transform=st.sampled_from([torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.ihfft]),
)  # fmt: skip
def test_transforms_along_one_axis(
    n: int, length: int | None, norm: str, rows: int, seed: int, axis: int, part: Run, transform: Run
):
    x = drawn(1, *((n, rows) if axis in (1, -2) else (rows, n)), seed=seed)
    assert_constant(lambda x: part(transform(x, length, axis, norm)), x)


@few
@given(
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=3), norm=NORMS, seed=SEEDS,
    transform=st.sampled_from([torch.fft.fftn, torch.fft.ifftn, torch.fft.rfftn, torch.fft.fft2, torch.fft.rfft2]),
)  # fmt: skip
def test_transforms_along_several_axes(sizes: list[int], norm: str, seed: int, transform: Run):
    x = drawn(1, *sizes, seed=seed)
    axes = (-2, -1) if transform in (torch.fft.fft2, torch.fft.rfft2) else tuple(range(1, len(sizes) + 1))
    assert_constant(lambda x: pairs(transform(x, dim=axes, norm=norm)), x)


@few
@given(n=st.integers(2, 13), norm=NORMS, other=NORMS, seed=SEEDS)
def test_spectral_filters_have_the_constant_of_their_matrix(n: int, norm: str, other: str, seed: int):
    x, filters = drawn(1, 2, n, seed=seed), drawn(2, n // 2 + 1, dtype=torch.complex128, seed=seed + 1)
    assert_constant(lambda x: torch.fft.irfft(torch.fft.rfft(x, norm=norm) * filters, n=n, norm=other), x)
    assert_constant(lambda x: torch.fft.irfft(filters / 2 * torch.fft.rfft(x, norm=norm), norm=other), x)


def test_a_real_filter_has_the_constant_of_its_largest_gain():
    # Circular convolution by a filter: the singular values are its gains.
    gains = drawn(5).abs()
    module = model(lambda _self, x: torch.fft.irfft(torch.fft.rfft(x) * gains, n=8))
    bound = lipkit.lipschitz(module, drawn(1, 8))
    assert float(gains.max()) * (1 - 1e-12) <= float(bound.value) <= float(gains.max()) * (1 + 1e-6)


@few
@given(tokens=st.integers(1, 7), width=st.integers(1, 6))
def test_mixing_by_fourier_transforms(tokens: int, width: int):
    assert_constant(lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, drawn(1, tokens, width))


@few
@given(n=st.integers(1, 11), seed=SEEDS)
def test_magnitudes_keep_the_constant_of_the_transform(n: int, seed: int):
    module = model(lambda _self, x: torch.fft.rfft(x, norm="ortho").abs())
    bound = float(lipkit.lipschitz(module, drawn(1, n, seed=seed), DAG(SVD())).value)
    # The transform is a part of an isometry, and at constant inputs the first magnitude moves as far as they do.
    assert 1 - 1e-12 <= bound <= 1 + 1e-9
    with torch.no_grad():
        near, far = drawn(1, n, seed=seed), drawn(1, n, seed=seed + 1)
        assert float((module(near) - module(far)).norm()) <= bound * float((near - far).norm()) + 1e-12


class SpectralConv(nn.Module):
    """Matrices at the lowest frequencies, as Fourier neural operators have them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(drawn(2, 3, 2, 2, dtype=dtype, seed=seed)) for seed in (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.fft.rfft2(x)
        kept = torch.zeros(x.shape[0], 3, 6, 4, dtype=self.first.dtype)
        kept[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", seen[:, :, :2, :2], self.first)
        kept[:, :, -2:, :2] = torch.einsum("bixy,ioxy->boxy", seen[:, :, -2:, :2], self.second)
        return torch.fft.irfft2(kept, s=(6, 6))


def test_a_fourier_neural_operator_is_bounded_and_its_bound_has_gradients():
    module, x = SpectralConv(torch.complex128), drawn(1, 2, 6, 6)
    truth = jacobian_norm(module, x)
    bound = lipkit.lipschitz(module.train(), x, DAG(SVD()))
    assert truth * (1 - 1e-12) <= float(bound.value.detach()) <= truth * (1 + 1e-9)
    bound.value.backward()
    slope, step = module.first.grad, drawn(2, 3, 2, 2, dtype=torch.complex128, seed=9)
    assert slope is not None
    with torch.no_grad():
        module.first.add_(step, alpha=1e-6)
        moved = float(lipkit.lipschitz(module.eval(), x, DAG(SVD())).value)
    # A central value is simple here, and second derivatives are of size one: 1e-12 by 1e-6.
    assert moved - float(bound.value.detach()) == pytest.approx(
        1e-6 * float((slope.conj() * step).real.sum()), abs=1e-10
    )


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_models_in_single_precision_are_read_in_double():
    module, x = SpectralConv(torch.complex64), drawn(1, 2, 6, 6).float()
    bound = float(lipkit.lipschitz(module, x, DAG(SVD())).value.detach())
    assert bound == pytest.approx(jacobian_norm(module.to(torch.complex128), x.double()), rel=1e-9)


MATRIX = drawn(6, 2, dtype=torch.complex128)
FORMS: list[Run] = [
    lambda x: (x * (1 + 2j)).imag,
    lambda x: (x / torch.full((6,), 2 - 1j)).real,
    lambda x: (x + torch.full((6,), 1j)).imag + x,
    lambda x: ((3 - 1j) - x.to(torch.complex128)).imag + (x + 2j).real,
    lambda x: (x.to(torch.complex128) @ MATRIX).real,
    lambda x: torch.einsum("bi,io->bo", x.to(torch.complex128), MATRIX).imag,
    lambda x: torch.cat([x, torch.full((1, 6), 2j)], 1).real,
    lambda x: torch.where(torch.arange(6) > 2, x.to(torch.complex128), 1j * torch.ones(6, dtype=torch.complex128)).real,
    lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(-1, 3, 2)) * torch.tensor([1j, -1, 2])),
    lambda x: torch.complex(x[:, :3], x[:, 3:]).conj().imag,
    lambda x: torch.fft.fft(x).reshape(-1, 2, 3).transpose(1, 2).flip(1).roll(1, 2).sum(1).real,
    lambda x: torch.fft.fft(x)[:, [0, 3]].imag,
    lambda x: torch.fft.fft(x).chunk(2, -1)[1].imag,
    lambda x: torch.stack([torch.fft.fft(x), 1j * x], 1).mean(1).imag,
    lambda x: nn.functional.pad(torch.fft.rfft(x), (1, 2)).real,
    lambda x: nn.functional.pad(torch.fft.rfft(x), (1, 2), value=1.5).real,
    lambda x: torch.rsub(torch.fft.rfft(x), 2 - 1j, alpha=3).imag,
    lambda x: torch.fft.ifft(torch.fft.fft(x)).double(),
    lambda x: torch.fft.fftshift(torch.fft.fft(x), dim=1).real,
    lambda x: torch.fft.irfft(torch.fft.rfft(x, n=12) * torch.fft.rfft(torch.arange(6.0).double(), n=12))[:, :6],
    lambda x: torch.fft.hfft(torch.fft.ihfft(x)),
    lambda x: torch.stft(x, 4, window=torch.hann_window(4).double(), return_complex=True).real,
    lambda x: -torch.fft.fft(x).cumsum(1).clone().imag,
]


@pytest.mark.parametrize("run", FORMS)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_linear_forms_have_the_constant_of_their_matrix(run: Run):
    assert_constant(run, drawn(1, 6, seed=3))


@pytest.mark.slow
def test_a_product_of_two_complex_values_is_bounded_on_a_ball():
    module = model(
        lambda _self, x: (torch.fft.fft(x) * torch.fft.rfft(x, n=10).conj()).real + x * torch.fft.fft(x).imag
    )
    x = drawn(1, 6)
    with pytest.raises(NeedsRegion):
        lipkit.lipschitz(module, x)
    region = Ball(x[0], 0.01)
    lower, upper = (lipkit.lipschitz(module, x, method, region=region) for method in (GradientAscent(), Auto()))
    assert jacobian_norm(module, x) <= float(upper.value) <= 1.2 * float(lower.value)


@pytest.mark.slow
def test_networks_with_transforms_are_bounded_near_a_point():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filters, self.out = nn.Parameter(drawn(5, 3, 2)), nn.Linear(24, 2, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            seen = torch.fft.rfft(torch.tanh(x), dim=1, norm="ortho") * torch.view_as_complex(self.filters)
            return self.out(torch.relu(torch.fft.irfft(seen, n=8, dim=1, norm="ortho")).flatten(1))

    torch.manual_seed(0)
    module, x = Block(), drawn(1, 8, 3)
    region = Ball(x[0], 0.05)
    upper = float(lipkit.lipschitz(module, x, region=region).value)
    lower = float(lipkit.lipschitz(module, x, GradientAscent(), region=region).value)
    assert lower <= upper <= 1.5 * lower


REFUSED: list[tuple[Run, str, str]] = [
    (torch.fft.fft, "the output is torch.complex128", "torch.view_as_real"),
    (lambda x: torch.fft.fft(x).angle(), "no limit at zero", ".abs()"),
    (lambda x: torch.fft.fft(x).tanh().real, "has no rule for complex numbers", ".real, .imag, .abs()"),
    (lambda x: torch.polar(x.abs(), x).real, "has no rule for complex numbers", "two real tensors"),
    (lambda x: (1 / torch.fft.fft(x)).real, "has no rule for complex numbers", "two real tensors"),
    (lambda x: (x / torch.fft.fft(x)).real, "not linear in", ".abs()"),
    (lambda x: (torch.fft.fft(x) @ torch.fft.fft(x).mT).real, "both depend on the input", "constant factors"),
]


@pytest.mark.parametrize(("run", "reason", "remedy"), REFUSED)
def test_other_operations_on_complex_values_are_refused_where_they_are(run: Run, reason: str, remedy: str):
    with pytest.raises(CaptureError, match="1 operation of this model") as caught:
        _ = capture(model(lambda _self, x: run(x)), drawn(1, 6))
    row = str(caught.value).splitlines()[-1]
    assert reason in row
    assert remedy in row


def test_a_promise_is_believed_between_complex_values_if_it_covers_them():
    class Declared(nn.Module):
        def declared_lipschitz(self, in_shape: tuple[int, ...]) -> Bound:
            return Bound.from_value(1.0 + len(in_shape), Kind.UPPER, "a test")

        def forward(self, x: Tensor) -> Tensor:
            return x / (1 + x.abs())

    class Covering(Declared):
        covers_complex = True

    class Whole(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner: Any = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(torch.fft.fft(x, norm="ortho")).real

    # Its operations are read, and a quotient of two complex values has no rule.
    with pytest.raises(CaptureError, match=r"div\.Tensor  inner"):
        _ = capture(Whole(Declared()), drawn(1, 6))
    network = capture(Whole(Covering()), drawn(1, 6))
    assert float(lipkit.lipschitz(network, method=DAG()).value) == pytest.approx(2.0, rel=1e-9)
