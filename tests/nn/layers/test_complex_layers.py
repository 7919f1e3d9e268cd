"""Layers of complex numbers: unitary weights, what lies between them, and what cannot be complex."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.errors import ArgumentError, CaptureError, UnsupportedError
from lipkit.nn.methods._base import MatrixMethod
from support.layers.examples import UNITARY
from support.layers.matrix_methods import SHAPES
from support.proven import proven

DTYPES = [torch.complex64, torch.complex128]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_method = pytest.mark.parametrize("method", UNITARY, ids=repr)


def haar(rows: int, cols: int, seed: int = 0) -> Tensor:
    drawn = torch.randn(1, rows, cols, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed))
    left, _, right = torch.linalg.svd(drawn, full_matrices=False)
    return left @ right


def doubled(matrix: Tensor) -> Tensor:
    """The real matrix of twice the size that a complex one stands for."""
    above, below = torch.cat([matrix.real, -matrix.imag], -1), torch.cat([matrix.imag, matrix.real], -1)
    return torch.cat([above, below], -2)


@every_method
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_unitary_matrix_has_free_numbers(method: MatrixMethod, shape: tuple[int, int]) -> None:
    # Of all determinants, which for real matrices is not so.
    for seed in range(3):
        weight = haar(*shape, seed)
        found = method.matrix(method.inverse_matrix(weight))
        # Inverses are as sharp as the condition of I + Q allows, about 1e3 here.
        torch.testing.assert_close(found, weight, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", [lnn.Polar(), lnn.Bjorck(20), lnn.NewtonSchulz(40), lnn.Cayley()], ids=repr)
def test_unitary_weights_are_the_orthogonal_ones_they_stand_for(method: Any) -> None:
    raw = torch.randn(1, 5, 5, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
    # Both iterations have arrived; what is left is the rounding of ill-conditioned matrices.
    torch.testing.assert_close(doubled(method.matrix(raw)), method.matrix(doubled(raw)), rtol=0, atol=1e-9)


def test_the_exponential_is_that_of_the_skew_part() -> None:
    raw = torch.randn(1, 6, 6, dtype=torch.complex128, generator=torch.Generator().manual_seed(2))
    turn = raw - raw.mH
    values, vectors = torch.linalg.eigh(-1j * turn)
    expected = (vectors * torch.exp(1j * values)[:, None, :]) @ vectors.mH
    # The room for rounding is 2e-12.
    torch.testing.assert_close(lnn.Exponential().matrix(raw), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("shape", [(4, 4), (7, 3)], ids=str)
def test_reflections_turn_by_the_phase_of_their_entry(shape: tuple[int, int]) -> None:
    rows, cols = shape
    raw = torch.randn(1, rows, cols, dtype=torch.complex128, generator=torch.Generator().manual_seed(3))
    product = torch.eye(rows, dtype=torch.complex128)
    for i in range(cols):
        v = raw[0, :, i]
        turn = 1 + (v[i] / v[i].abs()) ** 2
        product = product @ (torch.eye(rows) - turn * torch.outer(v, v.conj()) / v.abs().square().sum())
    # The room for rounding is 2e-12.
    torch.testing.assert_close(lnn.Householder().matrix(raw)[0], product[:, :cols], rtol=0, atol=1e-11)


@pytest.mark.parametrize("raw", [3e38 * (1 + 1j), 1e-45 * (1 + 1j), 3e38j], ids=str)
@every_method
def test_the_largest_and_the_least_numbers(method: MatrixMethod, raw: complex) -> None:
    # |z| overflows in complex64 where both parts are the largest numbers.
    free = torch.full((1, 3, 3), raw, dtype=torch.complex64) * torch.eye(3)
    free.requires_grad_()
    weight = method.matrix(free)
    assert float(torch.linalg.svdvals(weight.detach().to(torch.complex128)).max()) <= 1
    (gradient,) = torch.autograd.grad(weight.real.sum(), free)
    assert bool(torch.isfinite(gradient).all())


@every_dtype
def test_wide_layers_are_trained_by_torch(dtype: torch.dtype) -> None:
    layer = lnn.Linear(7, 4, dtype=dtype)
    target = haar(4, 7)[0].to(dtype)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss = (layer.weight - target).abs().square().sum()
        loss.backward()
        optimizer.step()
    assert float((layer.weight - target).detach().abs().square().sum()) < 1e-3
    assert float(torch.linalg.svdvals(layer.weight.detach().to(torch.complex128)).max()) <= 1 + 1e-14


@every_dtype
def test_starts(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    found = lnn.near_identity(8, dtype)
    values = torch.linalg.svdvals(found.to(torch.complex128))
    assert float(values.max()) <= 1
    assert float(values.min()) >= 1 - 2e-5
    assert float(torch.linalg.svdvals((found - torch.eye(8)).to(torch.complex128)).max()) < 0.4
    weight = (0.9 * haar(6, 10)[0] + 0.02 * torch.randn(6, 10, dtype=torch.complex128)).to(dtype)
    left, _, right = torch.linalg.svd(weight.to(torch.complex128), full_matrices=False)
    lnn.orthonormal_([weight])
    torch.testing.assert_close(weight.to(torch.complex128), left @ right, rtol=0, atol=2e-5)
    with pytest.raises(ArgumentError, match=r"complex64 and complex128, got torch\.bfloat16"):
        lnn.near_identity(4, torch.bfloat16)


@every_dtype
def test_projection_leaves_unitary_weights_alone(dtype: torch.dtype) -> None:
    plain = nn.Linear(6, 4, dtype=dtype)
    lnn.project(plain, linear=lnn.Polar())
    before = plain.weight.detach().clone()
    assert float(torch.linalg.svdvals(before.to(torch.complex128)).max()) <= 1 + 1e-14
    lnn.project(plain, linear=lnn.Polar())
    assert torch.equal(plain.weight, before)
    layer = lnn.Linear(6, 4, dtype=dtype, method=lnn.Cayley())
    weight = layer.weight.detach()
    lnn.project(layer)
    torch.testing.assert_close(layer.weight.detach(), weight, rtol=0, atol=1e-5)


def test_autocast_leaves_complex_numbers_alone() -> None:
    layer = lnn.Linear(4, 4, dtype=torch.complex64).eval()
    x = torch.randn(2, 4, dtype=torch.complex64)
    with torch.autocast("cpu", dtype=torch.bfloat16), lnn.frozen(layer):
        assert torch.equal(layer(x), layer(x))
        assert layer(x).dtype == torch.complex64
        assert layer.gain == 1


def test_subnormal_numbers_have_derivatives_behind_the_rectifier() -> None:
    """torch's derivative of the absolute value of such a number is NaN."""
    z = torch.tensor([[1e-40 * (1 + 1j), 1e-45j, 0, 0.3 + 0.4j]], dtype=torch.complex64, requires_grad=True)
    (gradient,) = torch.autograd.grad(lnn.ModReLU(start=0.2)(z).real.sum(), z)
    assert bool((gradient[0, :3] == 0).all())
    # The derivative in a direction u is (1 - b/|z|) u + b <z, u> z / |z|^3; here of the real part, along 1 and i.
    direct = complex(1 - 0.2 / 0.5 + 0.2 * 0.3 * 0.3 / 0.125, 0.2 * 0.3 * 0.4 / 0.125)
    assert complex(gradient[0, 3]) == pytest.approx(direct, rel=1e-5)


def test_a_complex_recurrent_layer_is_converted_by_torch() -> None:
    """torch makes complex numbers of all parameters, also of thresholds, which stay real in meaning."""
    layer = lnn.OrthogonalRNN(3, 4, dtype=torch.complex64)
    x = torch.randn(2, 5, 3, dtype=torch.complex64)
    expected = layer(x)
    # torch announces that complex modules are new.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer.to(torch.complex128)
    torch.testing.assert_close(layer(x.to(torch.complex128)).to(torch.complex64), expected, rtol=1e-5, atol=1e-5)
    assert layer.gain <= 1 + 1e-8


class Between(nn.Module):
    """A network of complex numbers between real ends."""

    def __init__(self, enter: Callable[[Tensor], Tensor], middle: nn.Module, leave: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.middle, self.leave = enter, middle, leave

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.middle(self.enter(x)))


class Split(nn.Module):
    """The rectifier of real and imaginary parts."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.view_as_complex(torch.relu(torch.view_as_real(z)))


def chain(dtype: torch.dtype, activation: nn.Module) -> nn.Module:
    last = lnn.Linear(5, 3, dtype=dtype, method=lnn.Exponential())
    return nn.Sequential(lnn.Linear(4, 5, dtype=dtype, method=lnn.Cayley()), activation, last)


def ratio(model: nn.Module, in_shape: tuple[int, ...], dtype: torch.dtype) -> float:
    """The largest difference quotient of pairs, near and far."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, *in_shape, generator=generator, dtype=dtype)
    y = x + torch.randn(x.shape, generator=generator, dtype=dtype) * torch.logspace(-1, 1, 400, dtype=dtype).reshape(
        -1, *(1,) * len(in_shape)
    )
    with torch.no_grad():
        moved = (model(x) - model(y)).flatten(1).norm(dim=1)
    return float((moved / (x - y).flatten(1).norm(dim=1)).max())


@every_dtype
def test_networks_between_real_ends_have_their_declared_constant(dtype: torch.dtype) -> None:
    real = dtype.to_real()
    torch.manual_seed(0)
    pairs, cast = (torch.view_as_complex, (4, 2)), (lambda x: x.to(dtype), (4,))
    for (enter, in_shape), activation, leave in (
        (pairs, Split(), torch.view_as_real),
        (cast, lnn.ModReLU(5, 0.3, dtype=dtype), torch.abs),
    ):
        model = Between(enter, chain(dtype, activation), leave).eval()
        with torch.no_grad():
            # The product of the norms of layers; other methods find less.
            bound = lipkit.lipschitz(model, torch.randn(1, *in_shape, dtype=real), lipkit.bounds.DAG())
        assert bound.kind.certifies
        # Isometries are shrunk by a few units of their type, which the product of two sees.
        assert 1 - 1e-5 <= float(bound.value) <= 1 + 1e-9
        assert ratio(model, in_shape, real) <= float(bound.value) * (1 + 1e-5)


def test_convolutions_and_condensed_models() -> None:
    first = lnn.Conv2d(2, 3, 1, dtype=torch.complex128, method=lnn.Bjorck())
    model = Between(lambda x: x.to(torch.complex128), first, torch.abs).eval()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    for one in (model, lnn.condense(model)):
        assert proven(one, x) == pytest.approx(1, abs=1e-9)
    second = nn.Conv1d(2, 3, 3, padding=1, dtype=torch.complex128)
    plain = Between(lambda x: x.to(torch.complex128), second, torch.abs)
    weight = second.weight.detach()
    dense = torch.zeros(3, 5, 2, 5, dtype=torch.complex128)
    for i in range(5):
        for t in range(3):
            if 0 <= i + t - 1 < 5:
                dense[:, i, :, i + t - 1] = weight[:, :, t]
    # From real inputs: the norm of the pair of real matrices, one above the other.
    flat = dense.reshape(15, 10)
    truth = torch.linalg.svdvals(torch.cat([flat.real, flat.imag]))[0]
    found = proven(plain, torch.randn(1, 2, 5, dtype=torch.float64))
    assert found == pytest.approx(float(truth), rel=1e-6)
    assert found >= float(truth) * (1 - 1e-14)


@every_dtype
def test_a_unitary_recurrent_layer(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layer = lnn.OrthogonalRNN(3, 5, dtype=dtype, tokens=6, method=lnn.Exponential())
    assert isinstance(layer.orthogonal_steps[0].activation, lnn.ModReLU)
    model = Between(torch.view_as_complex, layer, torch.view_as_real).eval()
    x = torch.randn(1, 6, 3, 2, dtype=dtype.to_real())
    assert proven(model, x, method=lipkit.bounds.DAG()) == pytest.approx(1, abs=1e-6)
    assert layer.gain <= 1 + 1e-12
    assert ratio(model, (6, 3, 2), dtype.to_real()) <= 1 + 1e-5
    values = torch.linalg.svdvals(layer.orthogonal_steps[0].state.weight.detach().to(torch.complex128))
    assert float(values.max()) <= 1 + 1e-14
    assert float(values.min()) >= 1 - 2e-5
    with pytest.raises(UnsupportedError, match=r"holds for complex numbers, got Tanh\(\); use lipkit\.nn\.ModReLU"):
        lnn.OrthogonalRNN(3, 5, dtype=dtype, activation=nn.Tanh())


def test_soft_thresholds_of_absolute_values() -> None:
    layer = lnn.ModReLU(1, 0.5, dtype=torch.complex128)
    z = torch.tensor([[3.0 + 4.0j, 0.3j, 0.0, -2.0]], dtype=torch.complex128)
    expected = torch.tensor([[0.9 * (3 + 4j), 0, 0, -1.5]], dtype=torch.complex128)
    torch.testing.assert_close(layer(z), expected)
    z = torch.randn(2, 6, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, b: torch.func.functional_call(layer, {"log_threshold": b}, (z,)), (
        z, layer.log_threshold,
    ))  # fmt: skip
    with pytest.raises(ArgumentError, match=r"ModReLU\.start must be a positive number, got -1"):
        lnn.ModReLU(start=-1.0)


def test_the_published_form_jumps_at_zero() -> None:
    """With a positive bias, two points 2e-9 apart go to points 1 apart."""
    z = torch.tensor([1e-9, -1e-9], dtype=torch.complex128)
    published = torch.relu(z.abs() + 0.5) * z / z.abs()
    assert float((published[0] - published[1]).abs() / (z[0] - z[1]).abs()) > 1e8


class Enter(nn.Module):
    """Real and imaginary parts as complex numbers."""

    gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_complex(x)


class Leave(nn.Module):
    """The other way."""

    gain = 1.0
    covers_complex = True

    def forward(self, z: Tensor) -> Tensor:
        return torch.view_as_real(z)


@every_dtype
def test_chains_refuse_functions_of_real_numbers(dtype: torch.dtype) -> None:
    real = dtype.to_real()
    x = torch.randn(1, 4, 2, dtype=real)
    good = lnn.Sequential(Enter(), lnn.Linear(4, 4, dtype=dtype), lnn.ModReLU(4, dtype=dtype), Leave(), K=0.7)
    assert float(lipkit.lipschitz(good, x, lipkit.bounds.DAG()).value.detach()) == pytest.approx(0.7, rel=1e-6)
    # The complex tanh has a pole at i pi / 2, so this has no constant at all.
    parts = Enter(), lnn.Linear(4, 4, dtype=dtype), nn.Tanh(), Leave()
    with pytest.raises(UnsupportedError, match="Tanh is known for real numbers"):
        lnn.Sequential(*parts)(x)
    with pytest.raises(CaptureError):
        lipkit.lipschitz(nn.Sequential(*parts), x)
    # A promise about real numbers is not believed between complex ones.
    rescaled = lnn.Rescaled(nn.Tanh())
    with pytest.raises(CaptureError, match="complex"):
        lipkit.lipschitz(nn.Sequential(Enter(), lnn.Linear(4, 4, dtype=dtype), rescaled, Leave()), x)


REFUSED: dict[str, Callable[[torch.dtype], object]] = {
    "method": lambda dtype: lnn.Linear(3, 2, dtype=dtype, method=lnn.AOL()),
    "taps": lambda dtype: lnn.Conv1d(3, 2, 3, dtype=dtype, method=lnn.Bjorck()),
    "default": lambda dtype: lnn.Conv2d(3, 2, 1, dtype=dtype),
    "Fourier": lambda dtype: lnn.Conv1d(2, 2, 3, padding=1, padding_mode="circular", dtype=dtype, method=lnn.LOT((4,))),
    "parametrize": lambda dtype: lnn.parametrize(nn.Linear(2, 2, dtype=dtype), "weight", lnn.SingularClip()),
    "project": lambda dtype: lnn.project(nn.Linear(2, 2, dtype=dtype), linear=lnn.Spectral()),
    "converted": lambda dtype: lnn.Linear(3, 2, method=lnn.AOL())._apply(lambda t: t.to(dtype)).weight,
    "residual": lambda dtype: lnn.CPL(3, 2, dtype=dtype),
    "attention": lambda dtype: lnn.CosineAttention(4, 2, dtype=dtype),
    "shift": lambda dtype: lnn.ShiftBlock(16, dtype=dtype),
    "warp": lambda dtype: lnn.AffineWarp(dtype=dtype),
    "recurrent": lambda dtype: lnn.RNN(3, 4, dtype=dtype),
    "cell": lambda dtype: lnn.GRUCell(3, 4, dtype=dtype),
    "activation": lambda dtype: lnn.PReLU(4, dtype=dtype),
}


@pytest.mark.parametrize("name", REFUSED)
@every_dtype
def test_what_cannot_be_complex_says_what_can(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError, match=r"can be complex.*real and the imaginary parts as separate features"):
        REFUSED[name](dtype)


def test_other_conversions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="imaginary part; condense without a dtype"):
        lnn.condense(lnn.Linear(3, 2, dtype=torch.complex64), torch.float32)


def test_only_methods_with_a_proof_take_complex_numbers() -> None:
    taking = {type(method) for method in UNITARY}
    named = {lnn.Bjorck, lnn.Cayley, lnn.Exponential, lnn.Householder, lnn.NewtonSchulz, lnn.Polar, lnn.QR}
    assert taking == named
    with pytest.raises(UnsupportedError) as refusal:
        lnn.Linear(2, 2, dtype=torch.complex64, method=lnn.Frobenius())
    assert all(kind.__name__ in str(refusal.value) for kind in named)
