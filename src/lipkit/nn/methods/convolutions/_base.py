"""The base of orthogonal convolutions from chains of projectors: promises, starts, inverses."""

import dataclasses
import math
from abc import abstractmethod

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.linops import Padding
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._arithmetic.filter_gram import split_phases
from lipkit.nn.methods._base import Blocks, Free, MatrixMethod, Promise, WeightMethod, require_isometries
from lipkit.nn.methods.convolutions.chain_inverse import factorize
from lipkit.nn.methods.convolutions.projector_chain import ProjectorChain
from lipkit.norms import KernelIsometry, NearIsometry, Norm
from lipkit.norms.convolutions.toeplitz import filter_gram


class OrthogonalKernel(WeightMethod):
    """A method whose kernels are isometries on the infinite grid: promises, and how a weight is measured."""

    @abstractmethod
    def window(self, geometry: Geometry) -> tuple[int, ...]:
        """The taps on each axis within which outputs do not overlap, all of which are used."""

    def promise(self, geometry: Geometry) -> Promise:
        """An isometry on circles, with no padding if it is onto, with full padding if it is into."""
        entries = geometry.cols * math.prod(self.window(geometry))
        onto = geometry.rows <= entries and _windows_are_whole(geometry)
        into = geometry.rows >= entries and self._every_entry_is_met(geometry)
        return Promise.ISOMETRY if onto or into else Promise.CONTRACTION

    def _every_entry_is_met(self, geometry: Geometry) -> bool:
        """A'A = I: no position is skipped, and every window that meets the image is there."""
        axes = zip(
            *(self.window(geometry), geometry.taps, geometry.stride, geometry.dilation, geometry.padding), strict=True
        )
        return all(w == s and math.gcd(s, d) == 1 and _all_windows(geometry, k, s, d, p) for w, k, s, d, p in axes)

    def least_singular_value(self, weight: Blocks, geometry: Geometry) -> float:
        """From below, by the residual of the filter Gram: (1 - sum over shifts of ||R_a||)^(1/2)."""
        gram = filter_gram(split_phases(weight, geometry))
        shifts = gram.flatten(3).movedim(3, 1)
        shifts[:, shifts.shape[1] // 2] -= torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        residual = torch.linalg.matrix_norm(shifts, 2).sum(1).max()
        return math.sqrt(max(0.0, 1 - float(residual)))

    def norm_on_every_size(
        self, weight: Float64[Tensor, "groups rows cols *taps"], geometry: Geometry, enough: float
    ) -> float:
        """The norm of all outputs on axes where a stride only drops some: the kernel is near an isometry there."""
        walk = zip(self.window(geometry), geometry.stride, strict=True)
        # A transposed kernel has the norm of the convolution whose adjoint it is, and is judged as that: with another
        # stride the transposed one would need another output padding.
        whole = dataclasses.replace(geometry, stride=tuple(1 if w == 1 else s for w, s in walk), transposed=False)
        return super().norm_on_every_size(weight, whole, enough)

    def norm(self, geometry: Geometry) -> Norm:
        """By the residual of the kernel, which is sharp with every padding."""
        return KernelIsometry() if geometry.taps else NearIsometry()


class ChainMethod(OrthogonalKernel):
    """A method that multiplies a matrix by factors of one projector each."""

    inner: MatrixMethod

    def __post_init__(self) -> None:
        require_isometries(self.inner, f"{type(self).__name__}.inner")

    @abstractmethod
    def chain(self, geometry: Geometry) -> ProjectorChain:
        """The product that makes the kernels of a geometry."""

    def window(self, geometry: Geometry) -> tuple[int, ...]:
        return self.chain(geometry).window

    def free_shape(self, geometry: Geometry) -> tuple[int, ...]:
        chain = self.chain(geometry)
        return (chain.lines, chain.inner)

    def __call__(self, raw: Free, geometry: Geometry) -> Blocks:
        return self.chain(geometry).kernel(raw, self.inner).reshape(-1, *geometry.shape[1:])

    def inverse(self, weight: Blocks, geometry: Geometry) -> Free:
        chain = self.chain(geometry)
        return chain.changed(factorize(weight, chain), self.inner.inverse_matrix)

    def without_drift(self, raw: Free, geometry: Geometry) -> Free:
        chain = self.chain(geometry)
        return chain.changed(chain.changed(raw, self.inner.matrix), self.inner.inverse_matrix)

    def draw(self, geometry: Geometry) -> Free:
        """A random orthogonal H, and one random R for all factors: H at the central tap of odd kernels.

        Beside an R of its own for each factor this trains better, the deeper the network (docs/benchmarks.md): with
        zero padding, kernels that reach over the border lose there.
        """
        chain = self.chain(geometry)
        numbers = torch.empty(geometry.groups, chain.lines, chain.inner, dtype=torch.float64)
        head, factors = chain.parts(chain.changed(numbers, _random_isometries))
        if chain.axes and chain.rank:
            # The first R of each group, again and again.
            factors = factors[:: len(chain.axes)].repeat_interleave(len(chain.axes), 0)
        return chain.changed(chain.join(head, factors), self.inner.inverse_matrix)

    def start(self, geometry: Geometry) -> Blocks:
        return self(self.draw(geometry), geometry)


def _random_isometries(like: Tensor) -> Tensor:
    found = torch.empty_like(like)
    for one in found:
        torch.nn.init.orthogonal_(one)
    return found


def chain_of(geometry: Geometry, window: tuple[int, ...]) -> ProjectorChain:
    """The chain of a geometry whose head has `window` taps: on the larger side, or on as many channels as fit.

    With c the number of channels that factors act on: a kernel with fewer outputs than inputs in a window has c =
    `cols`, others have the most that leave it an isometry, rows // prod(window); `cols` of them are used.
    """
    size = math.prod(window)
    steps = [t - w for t, w in zip(geometry.taps, window, strict=True)]
    axes = tuple(axis for i in range(max(steps, default=0)) for axis, n in enumerate(steps) if i < n)
    if size == 1 and geometry.rows > geometry.cols:
        return ProjectorChain(geometry.cols, geometry.rows, geometry.rows, window, axes, transposed=True)
    inner = max(geometry.cols, geometry.rows // size)
    return ProjectorChain(geometry.rows, inner, geometry.cols, window, axes)


def _windows_are_whole(geometry: Geometry) -> bool:
    """A A' = I, given W W' = I on the infinite grid: rows are left out, but none is cut."""
    return geometry.mode is Padding.CIRCULAR or not any(map(any, geometry.padding))


def _all_windows(geometry: Geometry, k: int, s: int, d: int, sides: tuple[int, int]) -> bool:
    """Whether an axis has every window that meets the image: on a circle one for each multiple of the stride."""
    reach = d * (k - 1)
    if geometry.mode is Padding.CIRCULAR:
        # Without any padding the size of the circle is not checked, and a rest may be left over.
        return sum(sides) > reach - s and (sum(sides) > 0 or k == s == 1)
    return min(sides) >= reach and all(rest < s for rest in geometry.output_padding)
