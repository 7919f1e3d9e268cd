"""The largest singular value of a layer, as a function of its weight: two ways to read a convolution."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from lipkit._runtime import evaluating
from lipkit.analysis.curvature.spectrum_estimates import extreme_eigenvalues
from lipkit.analysis.dynamics.gram_squaring import decompose_together
from lipkit.analysis.dynamics.grouped_kernels import decompose_blocks, kernel_matrix
from lipkit.analysis.singular_values.curvature_of_values import singular_value_hessian
from lipkit.analysis.singular_values.gram_decomposition import LEAST_GAP, GramDecomposition, decompose_gram
from lipkit.analysis.singular_values.singular_value_hessian import SingularValueHessian
from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, UnsupportedError
from lipkit.linops import Dense, LinearOperator, Shape
from lipkit.regularizers.linear_layers import Convolution, LinearLayer

# Products with the Hessian of an operator's norm, and the residual that ends them: three digits are enough to compare.
_STEPS, _RESIDUAL = 20, 1e-3


@final
@dataclass(frozen=True, eq=False)
class Measurement:
    """sigma_1 of a layer at one weight, its vectors, its gap, and D^2 sigma_1[X, X]; `gram` only of a matrix.

    Of an operator `form` raises `NotProvenError` along X that splits a repeated value, where there is no such number.

    The gap is the distance d of `analysis.taylor`; None where the layer is read as an operator, because there the gap
    of the matrix says nothing about the kernel. `amplification` is ||D^2 sigma_1||, None if nobody asked for it.
    """

    value: float
    gap: float | None
    left: Float64[Tensor, "..."]
    right: Float64[Tensor, "..."]
    form: Callable[[Tensor], Float64[Tensor, ""]]
    gram: GramDecomposition | None = None
    amplification: float | None = None


@final
@dataclass(frozen=True, eq=False)
class TrackedLayer:
    """A layer whose norm is tracked: where its weight is, what it does, and how its norm is measured."""

    name: str
    module: nn.Module
    read: Callable[[], Tensor]
    operator: Callable[[Tensor], LinearOperator]
    reading: "Reading"
    in_shape: Shape

    def weight(self) -> Float[Tensor, "..."]:
        """The weight as it is now, in evaluation if it is computed, without graph, at least in float32."""
        now = self.read().detach()
        return now if now.dtype == torch.float64 else now.to(torch.float32)

    def measure(self, weight: Float[Tensor, "..."], step: int) -> Measurement:
        """The norm at a weight; refuses NaN and zero by the name of the layer and the number of the step."""
        if not bool(torch.isfinite(weight).all()):
            raise NonFiniteError(
                f"Layer {self.name!r} has NaN or infinite weights after {step} steps, so it has no norm; what was "
                "recorded before stands in the history; lower the rate."
            )
        if not bool(weight.any()):
            raise ArgumentError(
                f"Layer {self.name!r} is zero after {step} steps, so log of its norm does not exist; initialise it "
                "otherwise, or enter the profiler after the first step."
            )
        return self.reading.measure(self.operator(weight))

    def parameter(self) -> nn.Parameter | None:
        """The parameter that holds the weight; None if the weight is computed from others."""
        storage = self.read().untyped_storage().data_ptr()
        for parameter in self.module.parameters():
            if parameter.untyped_storage().data_ptr() == storage:
                return parameter
        return None

    def part_of(self, gradient: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The gradient of the weight, from that of its parameter, which may hold other weights beside it."""
        weight, parameter = self.read(), self.parameter()
        assert parameter is not None, "weights that are computed have no gradient of their own"
        return gradient[_rows(weight, parameter)] if weight.shape != parameter.shape else gradient


@dataclass(frozen=True)
class Reading(ABC):
    """How a convolution becomes a linear map whose norm is tracked."""

    @abstractmethod
    def operator(self, layer: LinearLayer) -> Callable[[Tensor], LinearOperator]:
        """The map from a weight to the operator of the layer with this weight."""

    @abstractmethod
    def measure(self, op: LinearOperator) -> Measurement:
        """The largest singular value of an operator, with its derivatives."""

    def measure_together(self, ops: Sequence[LinearOperator]) -> list[Measurement | None]:
        """Measurements of several operators where that is faster than one by one; None for those that it is not."""
        return [None for _ in ops]

    @property
    @abstractmethod
    def gives_matrices(self) -> bool:
        """Whether operators that are `Dense` are the matrices of weights, so that those of one shape can be stacked."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Says in words which norm of a convolution is meant."""

    def track(self, layers: Sequence[LinearLayer]) -> tuple[TrackedLayer, ...]:
        """The layers, read this way."""
        return tuple(TrackedLayer(x.name, x.module, _weight_of(x), self.operator(x), self, x.in_shape) for x in layers)


@final
@dataclass(frozen=True)
class AsMatrix(Reading):
    """A convolution is the matrix (c_out, c_in k k) of its kernel, a transposed one (c_in, c_out k k): cheap.

    With groups it is block-diagonal, and its norm the largest of the blocks'. The matrix does not bound the
    convolution: with zero padding and no dilation that is at most (product of ceil(k / stride) over axes)^(1/2) times
    as large. Noise terms of plain kernels without groups are exact, those of others come from random signs.
    Cost: one eigenvalue decomposition of the smaller Gram matrix; on a GPU products of it instead.
    Reference: Luo 2025, proposition 4.5.2, which does not say which matrix is meant; blocks are ours.
    """

    def operator(self, layer: LinearLayer) -> Callable[[Tensor], LinearOperator]:
        groups = layer.module.groups if isinstance(layer.module, Convolution) else 1
        return lambda weight: kernel_matrix(weight, groups)

    def measure(self, op: LinearOperator) -> Measurement:
        if isinstance(op, Dense):
            return _measured(decompose_gram(op.weight))
        found = decompose_blocks(op)
        bend = found.gram.amplification
        return Measurement(found.gram.value, found.gap, found.left, found.right, found.form, amplification=bend)

    def measure_together(self, ops: Sequence[LinearOperator]) -> list[Measurement | None]:
        plain = {place: op.weight for place, op in enumerate(ops) if isinstance(op, Dense)}
        found = super().measure_together(ops)
        if products_are_cheap([op.tensors()[0] for op in ops]):
            for place, gram in zip(plain, decompose_together(list(plain.values())), strict=True):
                found[place] = None if gram is None else _measured(gram)
        return found

    @property
    def gives_matrices(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return (
            "convolutions as matrices (c_out, c_in k k) of their kernels, transposed ones (c_in, c_out k k), groups as "
            "blocks on the diagonal, which do not bound them"
        )


@final
@dataclass(frozen=True)
class AsOperator(Reading):
    """A convolution is the linear map it is on images of its size, whose norm bounds it.

    Its noise terms come from random signs.
    On a torus its largest value is double and stays so for every kernel; it is smooth in the kernel all the same.
    Cost: some hundred convolutions for one measurement; with `amplification` up to 20 products with the Hessian more,
    each about as many again.

    Args:
        amplification: Whether each measurement also finds ||D^2 sigma_1|| in the kernel, by Lanczos.
    """

    amplification: bool = False

    def operator(self, layer: LinearLayer) -> Callable[[Tensor], LinearOperator]:
        now = layer.operator()
        floating = [i for i, tensor in enumerate(now.tensors()) if tensor.is_floating_point()]
        if len(floating) != 1:
            raise UnsupportedError(
                f"Layer {layer.name!r} is {now}, which has {len(floating)} weights; only layers that are linear in one "
                "weight are tracked; give convolutions=analysis.AsMatrix()."
            )
        tensors = now.map(Tensor.detach).tensors()

        def put(weight: Tensor) -> LinearOperator:
            moved = tuple(weight.reshape(old.shape) if i == floating[0] else old for i, old in enumerate(tensors))
            return now.with_tensors(moved)

        return put

    def measure(self, op: LinearOperator) -> Measurement:
        hessian = singular_value_hessian(op)
        value, left, right = hessian.triplet()

        def form(change: Tensor) -> Tensor:
            return hessian.form(change.reshape(hessian.in_shape))

        bend = _amplification(op, hessian) if self.amplification else None
        return Measurement(value, None, left, right, form, amplification=bend)

    @property
    def gives_matrices(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return "convolutions as maps of images of their size"


def measure_layers(
    layers: Sequence[TrackedLayer], weights: Sequence[Float[Tensor, "..."]], step: int
) -> list[Measurement]:
    """The norms of layers at these weights, after a number of steps; all of them or an error.

    Layers that `Reading.measure_together` leaves out are measured alone, which also says what is wrong with a weight.
    """
    if not layers:
        return []
    ops = [layer.operator(weight) for layer, weight in zip(layers, weights, strict=True)]
    found = zip(layers, weights, layers[0].reading.measure_together(ops), strict=True)
    return [layer.measure(weight, step) if one is None else one for layer, weight, one in found]


def products_are_cheap(matrices: Sequence[Tensor]) -> bool:
    """Whether a hundred products of matrices take less time than one decomposition: not on a CPU."""
    return all(matrix.device.type != "cpu" for matrix in matrices)


def _measured(gram: GramDecomposition) -> Measurement:
    def form(change: Tensor) -> Tensor:
        wide = change.flatten(1).to(torch.float64)
        return gram.form(wide @ gram.right, wide.mT @ gram.left)

    return Measurement(gram.value, gram.gap, gram.left, gram.right, form, gram, gram.amplification)


def _amplification(op: LinearOperator, hessian: SingularValueHessian) -> float:
    """||D^2 sigma_1|| in the one weight of an operator. A Ritz value is too small rather than too large."""
    if isinstance(op, Dense):
        return decompose_gram(op.weight).amplification
    try:
        return max(extreme_eigenvalues(hessian, _STEPS, _RESIDUAL).largest, 0.0)
    except NotProvenError:
        # A repeated value that splits in some direction: the gap counts as the least one.
        return 1 / (LEAST_GAP * hessian.triplet()[0])


def _weight_of(layer: LinearLayer) -> Callable[[], Tensor]:
    module = layer.module

    def read() -> Tensor:
        return layer.operator().tensors()[0] if isinstance(module, nn.MultiheadAttention) else _tensor(module.weight)

    def read_still() -> Tensor:
        # In training mode some parametrizations (spectral_norm) move a state of their own whenever they are read.
        with evaluating(module):
            return read()

    return read_still if is_parametrized(module) else read


def _rows(weight: Tensor, parameter: Tensor) -> slice:
    """Which rows of a packed parameter a weight is."""
    start = int((weight.storage_offset() - parameter.storage_offset()) // parameter.stride(0))
    return slice(start, start + weight.shape[0])


def _tensor(weight: object) -> Tensor:
    assert isinstance(weight, Tensor), "layers_of lists modules with a weight"
    return weight
