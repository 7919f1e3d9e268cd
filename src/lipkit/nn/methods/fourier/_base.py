"""The base of methods that make a convolution orthogonal in Fourier space: one matrix for each frequency."""

import math
from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Complex, Float64, Int64
from torch import Tensor

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import CircularConv, Padding, Shape
from lipkit.linops.circular_conv import whole_circle
from lipkit.linops.fourier_matrices import from_spectrum, rounding_of, spectrum_of
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import room_for, unit_of
from lipkit.nn.methods._base import Blocks, Free, Promise, WeightMethod
from lipkit.norms import Circulant, NearIsometry, Norm
from lipkit.rounding.float64 import norm_up
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

Symbols = Complex[Tensor, "_ _ _"]


class FourierMethod(WeightMethod):
    """A kernel as large as the image, whose symbol is an isometry at each frequency of the torus of `in_size`.

    The free numbers are an ordinary kernel. Its symbol F(w) = sum_t raw[t] e^(i w.t) is computed at the frequencies of
    the torus, made an isometry Q(w) there, and transformed back. So the layer is an isometry on circular images of that
    size: exactly Q(w) at each frequency, semi-orthogonal where channels differ in number.

    Rounding may leave a symbol that is not conjugate at w and -w. The real part of its transform has the mean of one
    and the conjugate of the other, and means of contractions are contractions.

    Guarantee: norm at most 1 as stored. Singular values are 1 up to the room for rounding the entries of the kernel. In
    float32 the symbol of what rounding does is measured: u (2 sqrt(channels) + 4) is room enough unless it does the
    same at many positions, 1.2e-6 for 64 channels; then it is u sqrt(positions channels), 8e-6 of them on 16 x 16.
    """

    in_size: Shape

    def __post_init__(self) -> None:
        axes = self.in_size if isinstance(self.in_size, tuple) else ()
        if not 1 <= len(axes) <= 3 or not all(isinstance(n, int) and n >= 1 for n in axes):
            raise ArgumentError(
                f"{type(self).__name__}.in_size must be a tuple with the size of the images on each axis, got "
                f"{self.in_size!r}; for example (32, 32)."
            )

    @abstractmethod
    def isometries(self, symbols: Symbols, geometry: Geometry) -> Symbols:
        """Isometries (batch, rows, cols) of norm at most 1 as stored, from the symbols of the free numbers."""

    @abstractmethod
    def level(self, raw: Free) -> Free:
        """The free numbers in a size in which their symbols neither overflow nor vanish, in the type to compute in."""

    def promise(self, geometry: Geometry) -> Promise:
        name = type(self).__name__
        if len(geometry.taps) != len(self.in_size) or geometry.transposed:
            what = "a transposed convolution" if geometry.transposed else f"kernel {geometry.taps}"
            raise UnsupportedError(
                f"{name} makes convolutions on images of size {self.in_size}, and {what} is none; use Conv2d with "
                "in_size=(height, width), and Cayley, Bjorck or Householder for matrices."
            )
        if any(s > 1 for s in geometry.stride):
            raise UnsupportedError(
                f"{name} makes convolutions of stride 1, got stride {geometry.stride}; put SpaceToDepth before the "
                "layer, which is an isometry, and give it the size that is left."
            )
        needed = tuple(d * (k - 1) for d, k in zip(geometry.dilation, geometry.taps, strict=True))
        if geometry.mode is not Padding.CIRCULAR or tuple(map(sum, geometry.padding)) != needed:
            raise UnsupportedError(
                f"{name} makes circular convolutions that keep the size, got padding {geometry.padding} with "
                f"{geometry.mode.value!r}; use padding_mode='circular' and pad by {needed} in all. For zeros beyond "
                "the border pad with nn.ZeroPad2d before the layer, and crop after it."
            )
        return Promise.ISOMETRY

    def kernel_geometry(self, geometry: Geometry) -> Geometry:
        _ = self.promise(geometry)
        ones = (1,) * len(self.in_size)
        return replace(
            geometry, taps=self.in_size, padding=whole_circle(self.in_size), dilation=ones, size=self.in_size
        )

    def __call__(self, raw: Free, geometry: Geometry) -> Blocks:
        parts = spectrum_of(self.level(raw), self._positions(geometry, raw.device), self.in_size, 1)
        kernel = self.kernel_of(self.isometries(_matrices(*parts), geometry), geometry)
        return (kernel * self._room(kernel.detach(), geometry, raw.dtype)).to(raw.dtype)

    def draw(self, geometry: Geometry) -> Free:
        """Normal numbers whose symbols have entries of variance 1 / rows."""
        shape = self.free_shape(geometry)
        drawn = torch.randn(geometry.groups, *shape, dtype=torch.float64)
        return self.at_free_size(drawn / math.sqrt(shape[0] * math.prod(geometry.taps)))

    def without_drift(self, raw: Free, geometry: Geometry) -> Free:
        """The free numbers themselves; in a fixed size where any multiple gives the same weight."""
        if not self.scale_free:
            return raw
        size = torch.linalg.vector_norm(raw.flatten(1), dim=1).reshape(-1, *(1,) * (raw.ndim - 1))
        unit = math.sqrt(min(raw.shape[1:3]))
        return torch.where(size > 0, self.at_free_size(raw / size.clamp(min=1e-300) * unit), raw)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        """The kernel itself, where it reaches no further than the free numbers; what they can hold of it elsewhere."""
        return self.at_free_size(self.window(weight, geometry))

    def window(self, weight: Blocks, geometry: Geometry) -> Free:
        """The entries of a kernel on the whole torus at the places of the taps."""
        positions = self._positions(geometry, weight.device)
        for axis, (at, n) in enumerate(zip(positions, self.in_size, strict=True), start=3):
            weight = weight.index_select(axis, at % n)
        return weight

    def norm(self, geometry: Geometry) -> Norm:
        return Circulant(NearIsometry())

    def norm_on_every_size(
        self, weight: Float64[Tensor, "groups rows cols *taps"], geometry: Geometry, enough: float
    ) -> float:
        """An upper bound of the norm on the one size that the kernel is for."""
        return float(self.norm(geometry)(CircularConv(geometry.join(weight), geometry.groups)).value)

    def least_singular_value(self, weight: Blocks, geometry: Geometry) -> float:
        """The smallest singular value of all matrices of the symbol."""
        symbol = torch.fft.rfftn(weight, dim=tuple(range(3, weight.ndim))).flatten(3).movedim(3, 1)
        return float(torch.linalg.svdvals(symbol).min())

    def symbols_of(self, weight: Blocks) -> Symbols:
        """The matrices of the symbol of a kernel on the whole torus."""
        places = [torch.arange(n, device=weight.device) for n in self.in_size]
        return _matrices(*spectrum_of(weight, places, self.in_size, 1))

    def kernel_of(self, symbols: Symbols, geometry: Geometry) -> Blocks:
        """The kernel on the whole torus with these matrices as its symbol, in float64."""
        frequencies = (*self.in_size[:-1], self.in_size[-1] // 2 + 1)
        shape = (geometry.groups, *frequencies, *symbols.shape[1:])
        parts = torch.view_as_real(symbols.to(torch.complex128).resolve_conj()).reshape(*shape, 2)
        real, imaginary = (part.movedim((-2, -1), (1, 2)) for part in parts.unbind(-1))
        return from_spectrum(real, imaginary, self.in_size, 1)

    def _positions(self, geometry: Geometry, device: torch.device) -> list[Int64[Tensor, "_"]]:
        """For each axis the places of the taps, relative to the output: 0 is the entry at the same place."""
        axes = zip(geometry.taps, geometry.dilation, geometry.padding, strict=True)
        return [torch.arange(k, device=device) * d - left for k, d, (left, _) in axes]

    def _room(self, kernel: Blocks, geometry: Geometry, dtype: torch.dtype) -> Float64[Tensor, "groups *ones"] | float:
        """The factor that makes room for rounding the kernel, and for the transform in float64 before.

        The transform moves the kernel by e = `rounding_of` times ||Q||_F / sqrt(n), ||Q||_F^2 <= n min(rows, cols),
        n positions; its symbol by sqrt(n) times that. Twice, for the means. `shrink` with n taps has room for every way
        to round the kernel, with 4 taps for ||E(f)||_F <= 2 u max(rows, cols)^(1/2) at all f, E(f) the symbol of what
        rounding adds: that is measured.
        """
        rows, cols = geometry.rows, geometry.cols
        positions = math.prod(self.in_size)
        transform = 2 * rounding_of(self.in_size) * math.sqrt(positions * min(rows, cols))
        most = room_for(rows, cols, positions, dtype) * (1 - transform)
        if dtype == torch.float64 or positions <= 4:
            return most
        least = room_for(rows, cols, 4, dtype) * (1 - transform)
        wide = kernel * least
        symbols = self.symbols_of(wide.to(dtype).to(torch.float64) - wide)
        size = norm_up(symbols, 2).unflatten(0, (geometry.groups, -1)).amax(1)
        # Less by the rounding of the norm, and of the transform of what has a Frobenius norm of at most u ||kernel||_F.
        enough = unit_of(dtype) * (2 * math.sqrt(max(rows, cols)) * (1 - MILLIONS_OF_ROUNDINGS) - transform)
        return torch.where(size <= enough, torch.full_like(size, least), most).reshape(-1, *(1,) * (kernel.ndim - 1))


def _matrices(real: Tensor, imaginary: Tensor) -> Symbols:
    """(groups, rows, cols, *frequencies) -> (groups frequencies, rows, cols), complex."""
    a, b = (part.flatten(3).movedim(3, 1).flatten(0, 1) for part in (real, imaginary))
    return torch.complex(a, b)
