"""Kernels as large as the image: transforms by matrices against fast ones, and the rounding that is claimed."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.linops import CircularConv, depth, materialize
from lipkit.linops.circular_conv import convolve
from lipkit.linops.fourier_matrices import from_spectrum, rounding_of, spectrum_of
from lipkit.linops.queries.absolute import dominating

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@settings(max_examples=40)
@given(SIZES, st.integers(0, 2**31))
def test_transforms_are_those_of_torch_and_inverse_to_each_other(size: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(2, *size, dtype=torch.float64)
    axes = tuple(range(1, x.ndim))
    real, imaginary = spectrum_of(x, [torch.arange(n) for n in size], size, -1)
    expected = torch.fft.rfftn(x, dim=axes)
    # At most 343 terms of size 4.
    torch.testing.assert_close(torch.complex(real, imaginary), expected, rtol=0, atol=1e-12)
    again = from_spectrum(real, imaginary, size, -1)
    assert float((again - x).norm()) <= 2 * rounding_of(size) * float(x.norm())


@settings(max_examples=40)
@given(SIZES, st.integers(0, 2**31))
def test_spectra_that_contradict_themselves_are_replaced_by_their_mean(size: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    half = (*size[:-1], size[-1] // 2 + 1)
    x = torch.randn(half, dtype=torch.complex128)
    found = from_spectrum(x.real, x.imag, size, -1)
    # The whole spectrum, with missing frequencies from their conjugates, and the real part of what it gives.
    whole = torch.zeros(size, dtype=torch.complex128)
    for f in torch.cartesian_prod(*[torch.arange(n) for n in size]).reshape(-1, len(size)).tolist():
        mirrored = tuple(-a % n for a, n in zip(f, size, strict=True))
        whole[tuple(f)] = x[tuple(f)] if f[-1] < half[-1] else x[mirrored].conj()
    torch.testing.assert_close(found, torch.fft.ifftn(whole).real, rtol=0, atol=1e-13)


@settings(max_examples=40)
@given(SIZES, st.integers(1, 2), st.integers(0, 2**31))
def test_the_fast_way_is_the_operator(size: tuple[int, ...], groups: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(2 * groups, 3, *size, dtype=torch.float64)
    operator = CircularConv(weight, groups)
    x = torch.randn(2, *operator.in_shape, dtype=torch.float64)
    # Sums of at most 3 * 343 products.
    torch.testing.assert_close(convolve(x, weight, groups), operator.apply(x), rtol=0, atol=1e-10)
    torch.testing.assert_close(operator.conv.apply(x), operator.apply(x), rtol=0, atol=1e-10)
    many = torch.stack([x, 2 * x])
    operation = torch.ops.lipkit.circular_convolution
    mapped = torch.func.vmap(operation, (0, None, None))(many, weight, groups)
    torch.testing.assert_close(mapped, convolve(many, weight, groups))
    weights = torch.stack([weight, -weight])
    mapped = torch.func.vmap(operation, (None, 0, None))(x, weights, groups)
    torch.testing.assert_close(mapped[1], -convolve(x, weight, groups))


@settings(max_examples=40)
@given(SIZES, st.integers(0, 2**31))
def test_every_entry_is_within_its_rounding(size: tuple[int, ...], seed: int) -> None:
    torch.manual_seed(seed)
    # One large entry: what rounding adds to others is relative to it, not to them.
    weight = torch.randn(2, 2, *size, dtype=torch.float64).mul(1e-4)
    weight[0, 0].view(-1)[0] = 1.0
    operator = CircularConv(weight)
    narrow = operator.to(torch.float32)
    wide = narrow.to(torch.float64)
    x = torch.randn(wide.in_shape)
    roundings = depth(wide) * 2.0**-24
    room = roundings / (1 - roundings) * dominating(wide).apply(x.double().abs())
    assert bool(((narrow.apply(x) - wide.apply(x.double())).abs() <= room).all())
    assert bool((materialize(dominating(wide)) >= materialize(wide).abs()).all())
    # With a matrix to spare it is the absolute value itself.
    torch.testing.assert_close(materialize(dominating(wide, 1)), materialize(wide).abs())
