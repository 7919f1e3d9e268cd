"""How a layer applies a kernel as large as the image: as products in Fourier space."""

import torch
from torch import Tensor

from lipkit._runtime import is_reading
from lipkit.errors import ArgumentError
from lipkit.linops.circular_conv import convolve
from lipkit.nn.core.precision import dtype_in_use, uncast


def multiply_in_fourier_space(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """The circular convolution of images with a kernel of their size, and a bias, in the type of the weight.

    Fast Fourier transforms in float32 at least, whatever autocast says. Cost: one matrix product for each frequency
    that a real image has, which is half of its positions, and the transforms of image, kernel and result.
    """
    if dtype_in_use(x) != weight.dtype:
        raise ArgumentError(
            f"A layer with a weight of type {weight.dtype} takes inputs of that type, got {x.dtype}; convert one of "
            "them, or use autocast."
        )
    wide = torch.promote_types(weight.dtype, torch.float32)
    # A model that is read keeps this as one operation, of which the tracer knows the operator.
    product = torch.ops.lipkit.circular_convolution if is_reading() else convolve
    with uncast(x.device.type):
        found = product(x.to(wide), weight.to(wide), groups)
        if bias is not None:
            found = found + bias.to(wide).reshape(-1, *(1,) * (weight.ndim - 2))
        return found.to(weight.dtype)
