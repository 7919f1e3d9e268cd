"""How a layer applies the exponential of a skew kernel: as a chain of convolutions with that kernel."""

import torch
from torch import Tensor

from lipkit._runtime import is_reading
from lipkit.errors import ArgumentError
from lipkit.linops import Padding
from lipkit.linops.conv_exponential import exponentiate
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import dtype_in_use


def multiply_by_series(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The series of a geometry that has one, and a bias, in the type of the weight.

    Cost: as many convolutions with the kernel as the series has terms, on images of full size, whatever the stride.
    """
    if dtype_in_use(x) != weight.dtype:
        raise ArgumentError(
            f"A layer with a weight of type {weight.dtype} takes inputs of that type, got {x.dtype}; convert one of "
            "them, or use autocast."
        )
    geometry.check_channels(x.shape[x.ndim - len(geometry.taps) - 1])
    geometry.check_size(tuple(x.shape[x.ndim - len(geometry.taps) :]))
    # A model that is read keeps this as one operation, of which the tracer knows the operator.
    product = torch.ops.lipkit.convolution_exponential if is_reading() else exponentiate
    # The adjoint of the exponential of a skew kernel is that of its negative.
    kernel = -weight if geometry.transposed else weight
    circular = geometry.mode is Padding.CIRCULAR
    image = geometry.before_series(x.to(weight.dtype))
    image = product(image, kernel, list(geometry.dilation), geometry.groups, circular, geometry.series)
    found = geometry.behind_series(image)
    return found if bias is None else found + bias.to(weight.dtype).reshape(-1, *(1,) * len(geometry.taps))
