"""The base of methods: frozen dataclasses that turn free numbers into weights of norm at most one."""

import enum
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Inexact
from torch import Tensor

from lipkit.bound import L2, Metric
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Conv, Dense, LinearOperator, Shape
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import widest
from lipkit.nn.methods._arithmetic.every_size import norm_on_every_size
from lipkit.norms import Auto, KernelIsometry, NearIsometry, Norm

Blocks = Inexact[Tensor, "groups rows cols *taps"]
# Free numbers, one block for each group: of the shape of the weight, unless the method says otherwise.
Free = Inexact[Tensor, "groups *free"]

# A norm of one in a weight that someone else computed may be off by this much.
_FEASIBLE_NORM = 1 + 1e-6
# The size of free numbers whose size does not matter, next to their weight: a power of two rounds nothing.
_FREE_SIZE = 0.25


class Promise(enum.Enum):
    """The property that a method guarantees for the weights of a geometry."""

    # Every singular value is 1, up to rounding: norms and gradients are kept.
    ISOMETRY = "isometry"
    # The largest singular value is at most 1.
    CONTRACTION = "contraction"

    def __str__(self) -> str:
        return self.value


class WeightMethod(ABC):
    """A map from free numbers to a weight whose operator has norm at most one, on every input size of the geometry.

    Subclasses are frozen dataclasses: their fields are the hyper-parameters. Calling one is pure and differentiable,
    with a number of operations that does not depend on values, so that it compiles. It computes in the dtype it is
    given, float32 or float64, some also complex64 or complex128; the result is proven for the numbers as stored, their
    rounding included.
    """

    # Whether free numbers times any positive number give the same weights.
    scale_free: ClassVar[bool] = False
    # Whether free numbers of a matrix may be complex, and give complex weights: ' is the conjugate transpose then.
    takes_complex: ClassVar[bool] = False

    def promise(self, geometry: Geometry) -> Promise:
        """The property that weights will have on this geometry: contractions, unless the method says otherwise.

        Raises UnsupportedError, with the reason, for a geometry on which the method proves nothing.
        """
        return Promise.CONTRACTION

    def kernel_geometry(self, geometry: Geometry) -> Geometry:
        """The geometry of the weight of a layer of `geometry`: the same, unless the method says otherwise.

        A series of convolutions has a larger kernel than the layer was asked for, with as much more padding; a kernel
        from Fourier space is as large as the image, and made for one size. Methods are always called with the geometry
        that was asked for; the operator of the layer, its norm and its rounding are those of the kernel.
        """
        return geometry

    def free_shape(self, geometry: Geometry) -> Shape:
        """The shape of the free numbers of one group: that of a block, unless the method says otherwise."""
        return geometry.shape[1:]

    @abstractmethod
    def __call__(self, raw: Free, geometry: Geometry) -> Blocks:
        """The weights of free numbers."""

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        """Free numbers whose weights are `weight`, if it is feasible; otherwise numbers whose weights are near.

        Where their scale is free, it is that of `at_free_size`.
        """
        return self.at_free_size(weight)

    def draw(self, geometry: Geometry) -> Free:
        """Random initial free numbers in float64: those of `start`, unless the method draws its numbers directly."""
        return self.inverse(self.start(geometry).to(torch.float64), geometry)

    def draw_complex(self, geometry: Geometry) -> Free:
        """The same in complex128, for methods that take complex numbers: those of uniform isometries."""
        drawn = torch.randn(geometry.groups, geometry.rows, geometry.cols, dtype=torch.complex128)
        left, _, right = torch.linalg.svd(drawn, full_matrices=False)
        return self.inverse((left @ right).reshape(geometry.shape), geometry)

    def without_drift(self, raw: Free, geometry: Geometry) -> Free:
        """Free numbers with the same weights, which do not depend on the way that training took to them."""
        return self.inverse(self(raw, geometry), geometry)

    def at_free_size(self, raw: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """Free numbers of the size of a weight, times 1/4 where any multiple gives the same weight.

        Adam moves every number by about its rate, whatever the gradient: the smaller the numbers are, the further the
        weight turns. From 1/4 networks learn better with hinge losses at the rate people use by habit, 1e-3, and less
        well with a cross-entropy (docs/benchmarks.md). Gradients are orthogonal to the numbers, so these grow while
        they are trained, and turns become smaller.
        """
        return raw * _FREE_SIZE if self.scale_free else raw

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether the weight keeps what `promise` says: proven norm at most 1 + 1e-6, for an isometry also sigma_min.

        A Björck iteration on a singular matrix, for example, ends in a contraction that is no isometry.
        """
        wide = weight.detach().to(widest(weight.dtype))
        if self.norm_on_every_size(wide, geometry, _FEASIBLE_NORM) > _FEASIBLE_NORM:
            return False
        return self.promise(geometry) is Promise.CONTRACTION or self.least_singular_value(wide, geometry) >= 1 - 2e-5

    def least_singular_value(self, weight: Blocks, geometry: Geometry) -> float:
        """The smallest singular value of the reshaped blocks (of a matrix, or of kernels with a single tap)."""
        return float(torch.linalg.svdvals(weight.flatten(2)).min())

    def start(self, geometry: Geometry) -> Blocks:
        """Random initial weights: an isometry at the central tap, zero elsewhere, from torch's default generator."""
        blocks = torch.empty(geometry.groups, geometry.rows, geometry.cols)
        for block in blocks:
            torch.nn.init.orthogonal_(block)
        if not geometry.taps:
            return blocks
        weight = torch.zeros(geometry.shape)
        weight[(..., *((t - 1) // 2 for t in geometry.taps))] = blocks
        return weight

    def metric(self, geometry: Geometry) -> Metric:
        """The norms in which the weights have constant at most one: l2, unless the method is for others."""
        return L2

    def norm_on_every_size(self, weight: Blocks, geometry: Geometry, enough: float) -> float:
        """An upper bound of the norm in `metric` on inputs of every size; no more is looked for once it is `enough`."""
        if weight.dtype.is_complex:
            # Complex kernels have one tap: a matrix at every position.
            return max(float(Auto(failure=0)(Dense(block)).value) for block in weight.flatten(2))
        if self.metric(geometry) == L2:
            return norm_on_every_size(weight, geometry, enough)
        return float(self.norm(geometry)(proxy(weight, geometry)).value)

    def norm(self, geometry: Geometry) -> Norm:
        """The norm that proves these weights sharply: by their residual for isometries, generally otherwise."""
        if self.promise(geometry) is Promise.CONTRACTION:
            return Auto(failure=0)
        return KernelIsometry() if geometry.taps else NearIsometry()


class MatrixMethod(WeightMethod):
    """A method for matrices; it also covers convolutions with a single tap, which are a matrix at every position."""

    @abstractmethod
    def matrix(self, raw: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        """The weights of a batch of matrices."""

    def in_float64(self, *several: Float[Tensor, "_ _ _"]) -> tuple[Float64[Tensor, "_ _ _"], ...]:
        """The weights of several batches of matrices in float64, norm at most one: for products with further ones.

        Where it can be done, before they were rounded to the type of the free numbers.
        """
        return tuple(self.matrix(one).to(torch.float64) for one in several)

    def inverse_matrix(self, weight: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        """Free numbers for a batch of feasible matrices."""
        return self.at_free_size(weight)

    def promise(self, geometry: Geometry) -> Promise:
        if math.prod(geometry.taps) != 1:
            name = type(self).__name__
            raise UnsupportedError(
                f"{name} makes matrices, and kernel {geometry.taps} is none; use RKO({name}()) for convolutions, "
                "or Spectral, Rescale or AOL."
            )
        # A stride drops positions and padding adds empty ones: what is left of an isometry is a partial one.
        added = any(map(any, geometry.padding)) or any(geometry.output_padding)
        whole = all(s == 1 for s in geometry.stride) and not added
        return Promise.ISOMETRY if whole else Promise.CONTRACTION

    def __call__(self, raw: Blocks, geometry: Geometry) -> Blocks:
        return self.matrix(raw.flatten(2)[..., : geometry.cols]).reshape(raw.shape)

    def inverse(self, weight: Blocks, geometry: Geometry) -> Blocks:
        return self.inverse_matrix(weight.flatten(2)).reshape(weight.shape)


def require_isometries(method: object, name: str) -> None:
    """Refuse what does not make orthogonal matrices, also a class in the place of its instance."""
    if not isinstance(method, MatrixMethod) or method.promise(Geometry(1, 2, 2)) is not Promise.ISOMETRY:
        raise ArgumentError(
            f"{name} needs a method for orthogonal matrices, such as Bjorck(), Cayley() or Exponential(), got "
            f"{method!r:.60}."
        )


def proxy(blocks: Blocks, geometry: Geometry) -> LinearOperator:
    """The operator of the blocks on a large image, with full padding.

    Its sums of absolute rows and columns are at least those of every layer with these blocks, whatever the size. Its
    l2 norm is only near that of larger ones: from below, where the matrix is small enough to be written out.
    """
    weight = geometry.join(blocks)
    if not geometry.taps:
        return Dense(weight)
    spatial = tuple(
        s * -(-max(64, 2 * d * k) // s)
        for s, d, k in zip(geometry.stride, geometry.dilation, geometry.taps, strict=True)
    )
    sides = tuple((d * (k - 1), d * (k - 1)) for d, k in zip(geometry.dilation, geometry.taps, strict=True))
    return Conv(weight, spatial, geometry.stride, sides, geometry.dilation, geometry.groups)
