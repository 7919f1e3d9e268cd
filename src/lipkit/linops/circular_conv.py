"""Circular convolutions with kernels as large as the image, multiplied in Fourier space."""

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ShapeError
from lipkit.linops._base import LinearOperator, Shape, promote
from lipkit.linops._windows import check_groups, check_rank
from lipkit.linops.conv import Conv
from lipkit.linops.fourier_matrices import Parts, from_spectrum, spectrum_of
from lipkit.linops.padding import Padding, Sides
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS


@final
@dataclass(frozen=True, eq=False)
class CircularConv(LinearOperator):
    """The convolution of an image with a kernel as large as itself, on a torus:

        y[o, i] = sum_{c, t} weight[o, c, t] x[c, i + t mod n],

    where c runs over the channels of the group of o. It is `conv`, the same sum written as any other convolution, which
    has n^2 terms for every axis. In Fourier space it is one matrix for each frequency. The transforms are products with
    matrices, whose rounding can be bounded; `convolve` is the fast way for layers.
    Cost: batch channels n prod(spatial) for the transforms, batch c_out c_in prod(spatial) for the products.
    """

    weight: Float[Tensor, "c_out c_in_per_group *spatial"]
    groups: int = 1

    def __post_init__(self) -> None:
        _ = check_rank(tuple(self.weight.shape))
        check_groups(self.groups, self.weight.shape[0], "output")
        if 0 in self.weight.shape:
            raise ShapeError(f"A kernel needs at least one entry on every axis, got {tuple(self.weight.shape)}.")

    @property
    def spatial(self) -> Shape:
        """The size of images, which is that of the kernel."""
        return tuple(self.weight.shape[2:])

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[1] * self.groups, *self.spatial)

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0], *self.spatial)

    @property
    def conv(self) -> Conv:
        """The same operator as a sum over taps."""
        ones = (1,) * len(self.spatial)
        return Conv(self.weight, self.spatial, ones, whole_circle(self.spatial), ones, self.groups, Padding.CIRCULAR)

    def symbol_size(self) -> Float64[Tensor, ""]:
        """sqrt(n) ||W||_F with n positions, or a little more: the Frobenius norm of all matrices of the symbol.

        It bounds each of them, and rounding errors are relative to it: with d = `depth` and u the unit of the type,
        the computed y satisfies ||y - A x||_2 <= d u `symbol_size` ||x||_2.
        """
        weight = self.weight.detach().to(torch.float64)
        # In units of the largest entry squares do not underflow; 1 is more than what nothing is divided by.
        largest = weight.abs().max()
        unit = torch.where(largest > 0, largest, 1.0)
        inflated = math.sqrt(math.prod(self.spatial)) * (1 + MILLIONS_OF_ROUNDINGS)
        return largest * torch.linalg.vector_norm(weight / unit) * inflated

    def _apply(self, x: Tensor) -> Tensor:
        return self._multiply(x, adjoint=False)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._multiply(y, adjoint=True)

    def _multiply(self, x: Tensor, adjoint: bool) -> Tensor:
        if x.is_complex():
            return torch.complex(self._multiply(x.real, adjoint), self._multiply(x.imag, adjoint))
        weight, x = promote(self.weight, x)
        places = [torch.arange(n, device=x.device) for n in self.spatial]
        kernel = spectrum_of(weight.unflatten(0, (self.groups, -1)), places, self.spatial, 1)
        image = spectrum_of(x.unflatten(1, (self.groups, x.shape[1] // self.groups)), places, self.spatial, -1)
        found = _adjoint_product(kernel, image) if adjoint else _product(kernel, image)
        return from_spectrum(*found, self.spatial, -1).flatten(1, 2)


def whole_circle(spatial: Shape) -> Sides:
    """The padding with which a kernel as large as the image meets every entry once: nothing before, n - 1 behind."""
    return tuple((0, n - 1) for n in spatial)


def convolve(x: Tensor, weight: Tensor, groups: int) -> Tensor:
    """`CircularConv(weight, groups)` on a batch of images, by fast Fourier transforms, in the type of both."""
    axes = tuple(range(2 - weight.ndim, 0))
    size = tuple(weight.shape[2:])
    first = x.ndim - len(axes) - 1
    image = torch.fft.rfftn(x, dim=axes).flatten(first + 1).unflatten(first, (groups, weight.shape[1]))
    kernel = torch.fft.rfftn(weight, dim=axes).flatten(2).unflatten(0, (groups, -1)).conj()
    found = torch.einsum("...gcf,gocf->...gof", image, kernel).flatten(first, first + 1)
    frequencies = (*size[:-1], size[-1] // 2 + 1)
    return torch.fft.irfftn(found.unflatten(-1, frequencies), s=size, dim=axes)


# One operation while a model is read, so that the operator is found again; split up by torch everywhere else.
_LIBRARY = torch.library.Library("lipkit", "FRAGMENT")
_LIBRARY.define("circular_convolution(Tensor x, Tensor weight, int groups) -> Tensor")
_LIBRARY.impl("circular_convolution", convolve, "CompositeImplicitAutograd")


def _convolve_batches(
    info: Any, in_dims: tuple[int | None, int | None, None], x: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, int]:
    axis, of_weight, _ = in_dims
    many = x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
    if of_weight is None:
        return convolve(many, weight, groups), 0
    pairs = zip(many, weight.movedim(of_weight, 0), strict=True)
    return torch.stack([convolve(*pair, groups) for pair in pairs]), 0


torch.library.register_vmap("lipkit::circular_convolution", _convolve_batches, lib=_LIBRARY)


def _product(kernel: Parts, image: Parts) -> Parts:
    """Q x at each frequency."""
    (a, b), (c, d) = kernel, image
    return _rows(a, c) - _rows(b, d), _rows(a, d) + _rows(b, c)


def _adjoint_product(kernel: Parts, image: Parts) -> Parts:
    """Q* y at each frequency."""
    (a, b), (c, d) = kernel, image
    return _columns(a, c) + _columns(b, d), _columns(a, d) - _columns(b, c)


def _rows(kernel: Tensor, image: Tensor) -> Tensor:
    return torch.einsum("goc...,bgc...->bgo...", kernel, image)


def _columns(kernel: Tensor, image: Tensor) -> Tensor:
    return torch.einsum("goc...,bgo...->bgc...", kernel, image)
