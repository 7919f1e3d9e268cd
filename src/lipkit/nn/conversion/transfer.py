"""Constrained layers that start from the weights of plain ones."""

import enum
from typing import Any

import numpy as np
import scipy
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit.errors import UnsupportedError
from lipkit.nn.core.constrained import Constrained
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.layers.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from lipkit.nn.layers.linear import Linear
from lipkit.nn.methods._base import WeightMethod, proxy
from lipkit.norms import Auto

_CONVOLUTIONS: dict[type[nn.Module], type[Any]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}


def constrained_twin(module: nn.Module, linear: WeightMethod, conv: WeightMethod) -> nn.Module | None:
    """The constrained layer with the arguments of a plain one; None if it is neither nn.Linear nor a convolution."""
    if torch.nn.utils.parametrize.is_parametrized(module):
        return None
    if type(module) is nn.Linear:
        place = {"device": module.weight.device, "dtype": module.weight.dtype}
        return Linear(module.in_features, module.out_features, module.bias is not None, **place, method=linear)
    build = _CONVOLUTIONS.get(type(module))
    if build is None:
        return None
    plain: Any = module
    place = {"device": plain.weight.device, "dtype": plain.weight.dtype}
    shared = {
        **{name: getattr(plain, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")},
        "bias": plain.bias is not None,
        "method": conv,
    }
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        shared["output_padding"] = module.output_padding
    return build(plain.in_channels, plain.out_channels, plain.kernel_size, **shared, **place)


# The share of the original weight that is added to an isometry.
_TRACE = 0.02


class ConversionStart(enum.Enum):
    """Where the constrained weights start."""

    # A nearby isometry without negative entries: rectifiers cut nothing off positive signals, which add up. A third of
    # K is left in a random ResNet-18, but channels are alike, and a centering takes most of them away.
    POSITIVE = "positive isometry"
    # The nearest isometry: keeps more of the weights. 1e-4 of K is left in a random ResNet-18.
    ISOMETRY = "nearest isometry"
    # Themselves, divided by their norm: the function is kept up to a factor, which is tiny in deep models.
    WEIGHTS = "weights"

    def __str__(self) -> str:
        return self.value


def take_weight(twin: nn.Module, plain: nn.Module, start: ConversionStart) -> float:
    """Give the twin the weight of the plain layer in the way `start` says; how much smaller it became.

    Isometries stand at taps that tile the image, see `_tiling`; a fiftieth of W / ||W|| is added, because equal
    channels would stay equal in training. The ratio counts as 1.
    As weights, W / ||W|| goes through the inverse of the method, and the ratio is that of least squares,
    <W', W> / <W, W>.
    """
    constraint = twin.get_submodule("parametrizations.weight.0")
    weight = plain.weight
    if not isinstance(constraint, Constrained) or not isinstance(weight, Tensor):
        raise UnsupportedError(f"{type(twin).__name__} has no constrained weight to take over.")
    if constraint.kernel != constraint.geometry:
        raise UnsupportedError(
            f"{constraint.method} makes a kernel that is not applied as a plain convolution, so the weight of "
            f"{type(plain).__name__} is no start for it; convert by AOC(), BCOP(), or a contraction such as AOL()."
        )
    with torch.no_grad():
        wide = weight.detach().to(torch.float64)
        geometry = constraint.geometry
        size = float(Auto(failure=0)(proxy(geometry.blocks(wide), geometry)).value)
        wanted = wide / size if size > 0 else wide
        if start is not ConversionStart.WEIGHTS:
            wanted = geometry.join(_tiling(geometry.blocks(wide), geometry, start)) + _TRACE * wanted
        raw = twin.get_parameter("parametrizations.weight.original")
        raw.copy_(constraint.right_inverse(wanted))
        found = twin.weight
        assert isinstance(found, Tensor)
        ratio = (found.to(torch.float64) * wide).sum() / wide.square().sum().clamp(min=1e-300)
    # A method may turn a weight by so much that no positive factor fits.
    return max(float(ratio), 1e-6) if start is ConversionStart.WEIGHTS else 1.0


def _tiling(
    blocks: Float64[Tensor, "groups rows cols *taps"], geometry: Geometry, start: ConversionStart
) -> Float64[Tensor, "groups rows cols *taps"]:
    """An isometry near a layer on taps that tile the image, as many as the stride is long; zero at all others.

    Windows of these taps meet every position once, so the kernel is an isometry if the matrix (rows, cols taps) is one.
    With stride 1 it is the central tap, with stride 2 a square of four, and patches are taken whole. Every tap of the
    original is added to the one that lies a multiple of the stride away, which is what constant images see.
    """
    found = torch.zeros_like(blocks)
    window = found
    for axis, (taps, stride, dilation) in enumerate(
        zip(geometry.taps, geometry.stride, geometry.dilation, strict=True)
    ):
        width = min(taps, stride) if dilation == 1 else 1
        first = (taps - 1) // 2 if width == 1 else (taps - width + 1) // 2
        place = (torch.arange(taps, device=blocks.device) - first) % width
        shape = (*blocks.shape[: 3 + axis], width, *blocks.shape[4 + axis :])
        blocks = blocks.new_zeros(shape).index_add_(3 + axis, place, blocks)
        window = window.narrow(3 + axis, first, width)
    near = positive_isometry if start is ConversionStart.POSITIVE else nearest_isometry
    window.copy_(near(blocks.flatten(2)).reshape(blocks.shape))
    return found


def nearest_isometry(matrices: Float64[Tensor, "batch rows cols"]) -> Float64[Tensor, "batch rows cols"]:
    """The polar factors: the matrices with all singular values 1 that are nearest in the Frobenius norm."""
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    return left @ right


def positive_isometry(matrices: Float64[Tensor, "batch rows cols"]) -> Float64[Tensor, "batch rows cols"]:
    """Isometries with entries >= 0 near the given matrices: each index of the longer side belongs to one of the
    shorter.

    The n indices that share one get the entry 1/sqrt(n), so supports are disjoint and of norm 1. All groups have n or
    n + 1 members, chosen by assignments with the largest sum of entries.
    """
    tall = matrices if matrices.shape[1] >= matrices.shape[2] else matrices.mT
    _, rows, cols = tall.shape
    found = torch.zeros_like(tall)
    for block, result in zip(tall.cpu().numpy(), found, strict=True):
        # Every column takes its n rows first, then the rows that are left are shared out, at most one each.
        first, slot = scipy.optimize.linear_sum_assignment(np.repeat(block, rows // cols, axis=1), maximize=True)
        left = np.setdiff1d(np.arange(rows), first)
        second, extra = scipy.optimize.linear_sum_assignment(block[left], maximize=True)
        result[torch.as_tensor(first), torch.as_tensor(slot // (rows // cols))] = 1.0
        result[torch.as_tensor(left[second]), torch.as_tensor(extra)] = 1.0
    found = found / found.sum(1, keepdim=True).sqrt()
    return found if matrices.shape[1] >= matrices.shape[2] else found.mT


def take_bias(twin: nn.Module, plain: nn.Module, scale: float) -> None:
    """The bias of the plain layer in the units of the twin's output; none where the units are not comparable, scale
    0."""
    bias, found = plain.bias, twin.bias
    if isinstance(bias, Tensor) and isinstance(found, Tensor):
        with torch.no_grad():
            found.copy_(bias * scale)
