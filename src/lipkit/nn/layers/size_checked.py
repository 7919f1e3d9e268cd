"""Convolutions that refuse images on which their kernel proves nothing: circular ones with a stride, or of one size."""

from typing import final

from torch import Tensor, nn

from lipkit.linops import LinearOperator, Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.layers.fourier_product import multiply_in_fourier_space


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
        """The convolution, after checking the size of the input; in Fourier space, if the kernel is made there."""
        self.geometry.check_size(tuple(input.shape[input.ndim - len(self.geometry.taps) :]))
        if self.geometry.size:
            return multiply_in_fourier_space(input, self.weight, self.bias, self.geometry.groups)
        return super().forward(input)


@final
class SizedConv1d(SizeChecked, nn.Conv1d):
    """nn.Conv1d on the sizes that its `geometry` accepts, as `condense` writes it."""


@final
class SizedConv2d(SizeChecked, nn.Conv2d):
    """nn.Conv2d on the sizes that its `geometry` accepts, as `condense` writes it."""


@final
class SizedConv3d(SizeChecked, nn.Conv3d):
    """nn.Conv3d on the sizes that its `geometry` accepts, as `condense` writes it."""


SIZED: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: SizedConv1d, nn.Conv2d: SizedConv2d, nn.Conv3d: SizedConv3d}
