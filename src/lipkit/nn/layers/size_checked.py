"""Convolutions whose kernel is not simply applied: on some sizes only, in Fourier space, or as a series."""

from typing import final

from torch import Tensor, nn

from lipkit.errors import UnsupportedError
from lipkit.linops import LinearOperator, Padding, Shape
from lipkit.linops.conv import CONV_TRANSPOSE
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.image_frame import wrap_ends
from lipkit.nn.layers.fourier_product import multiply_in_fourier_space
from lipkit.nn.layers.series_product import multiply_by_series


class HasKernel(nn.Module):
    """A convolution that gives its operator, for the tracer and for norms."""

    geometry: Geometry
    weight: Tensor
    bias: Tensor | None

    def linear_operator(self, in_shape: Shape) -> LinearOperator:
        """The layer without its bias, on one input of `in_shape` without batch axis."""
        return self.geometry.operator(self.weight, in_shape)


class SizeChecked(HasKernel):
    """A convolution that checks the size of every input, because its constant may depend on it."""

    def forward(self, input: Tensor) -> Tensor:
        """The convolution, after checking the size of the input; in Fourier space or as a series, if it is one."""
        if self.geometry.series:
            return multiply_by_series(input, self.weight, self.bias, self.geometry)
        self.geometry.check_size(tuple(input.shape[input.ndim - len(self.geometry.taps) :]))
        if self.geometry.size:
            return multiply_in_fourier_space(input, self.weight, self.bias, self.geometry.groups)
        return super().forward(input)


class SizeCheckedTransposed(HasKernel):
    """A transposed convolution, the adjoint of a series, or that of a convolution that pads around a circle."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The transposed convolution; other adjoints have one output size, which none can be asked for."""
        geometry = self.geometry
        if not geometry.series and geometry.mode is Padding.ZEROS:
            return super().forward(input, output_size)
        if output_size is not None:
            raise UnsupportedError(
                f"The adjoint of a {'series' if geometry.series else 'circular convolution'} takes no output_size, got "
                f"{output_size}; give output_padding to the layer."
            )
        if geometry.series:
            return multiply_by_series(input, self.weight, self.bias, geometry)
        axes = len(geometry.taps)
        geometry.check_size(tuple(input.shape[input.ndim - axes :]))
        walk = (geometry.stride, 0, geometry.output_padding, geometry.groups, geometry.dilation)
        found = wrap_ends(CONV_TRANSPOSE[axes](input, self.weight, None, *walk), geometry.padding)
        return found if self.bias is None else found + self.bias.to(found.dtype).reshape(-1, *(1,) * axes)


@final
class SizedConv1d(SizeChecked, nn.Conv1d):
    """nn.Conv1d on the sizes that its `geometry` accepts, as `condense` writes it."""


@final
class SizedConv2d(SizeChecked, nn.Conv2d):
    """nn.Conv2d on the sizes that its `geometry` accepts, as `condense` writes it."""


@final
class SizedConv3d(SizeChecked, nn.Conv3d):
    """nn.Conv3d on the sizes that its `geometry` accepts, as `condense` writes it."""


@final
class SizedConvTranspose1d(SizeCheckedTransposed, nn.ConvTranspose1d):
    """nn.ConvTranspose1d that applies the adjoint of a series, or wraps its outputs, as `condense` writes it."""


@final
class SizedConvTranspose2d(SizeCheckedTransposed, nn.ConvTranspose2d):
    """nn.ConvTranspose2d that applies the adjoint of a series, or wraps its outputs, as `condense` writes it."""


@final
class SizedConvTranspose3d(SizeCheckedTransposed, nn.ConvTranspose3d):
    """nn.ConvTranspose3d that applies the adjoint of a series, or wraps its outputs, as `condense` writes it."""


OWN_FORWARD: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: SizedConv1d,
    nn.Conv2d: SizedConv2d,
    nn.Conv3d: SizedConv3d,
    nn.ConvTranspose1d: SizedConvTranspose1d,
    nn.ConvTranspose2d: SizedConvTranspose2d,
    nn.ConvTranspose3d: SizedConvTranspose3d,
}
