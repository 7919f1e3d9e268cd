"""The second derivative of a singular value as an operator: of a matrix in its entries, of a layer in its kernel."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.analysis.singular_values.curvature_of_largest import curvature_of_largest
from lipkit.analysis.singular_values.decomposition import Decomposition, decompose
from lipkit.analysis.singular_values.singular_value_hessian import SingularValueHessian
from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, UnsupportedError
from lipkit.linops import CircularConv, Conv, ConvTranspose, Dense, Diagonal, LinearOperator, Shape
from lipkit.linops.composites import parts_of
from lipkit.norms import Lanczos
from lipkit.norms.svd import pull_back, solve_for_vectors

# Vectors are followed until ||A'u - sigma v|| is this share of sigma: second derivatives then have about ten digits.
_CONVERGED = 1e-12
_ROUNDS = 40
# From this size on, eigenvalues and factors of a Gram matrix are faster than singular values with vectors.
_BY_GRAM = 256
# Entries of a weight up to which an operator's curvature is taken in every direction.
_MOST_ENTRIES = 1024
# Directions in which one system of equations is solved at once, for the memory of their images.
_AT_ONCE = 64
# Eigenvalues of the curvature below this share of the largest are what the iterations left of zero.
_ZERO = 1e-9


def singular_value_hessian(target: Float[Tensor, "m n"] | LinearOperator, k: int = 0) -> SingularValueHessian:
    """The second derivative of sigma_k of a matrix, or of the norm of an operator in its weight.

    Of a matrix any value that is positive and apart from the others has one. Of an operator that is linear in one
    weight (a convolution: X is a kernel) it is that of the largest value, without a decomposition. There a repeated
    value may be smooth: on a torus it is double for the frequencies w and -w and stays so for every kernel. So it is
    not the gap that decides, but whether the equations of the vectors have a solution.

    Guarantee: ESTIMATE, in float64; refuses what has no second derivative.
    Cost: one decomposition, for sigma_1 of a large matrix that of its smaller Gram matrix, then O(mn) a product; of an
    operator about a hundred applications, then as many a product, so one product with a large matrix is cheapest by
    `Dense(matrix)`, many are by the matrix. The trace, diagonal and spectrum of an operator are a product for each
    entry of its weight, and are refused above 1024 entries.
    Reference: Luo 2025, lemma 3.6.1; products without the Hessian and the form for operators are ours.
    """
    if isinstance(target, Tensor):
        if k == 0 and target.ndim == 2 and min(target.shape) >= _BY_GRAM:
            return curvature_of_largest(target)
        return _OfMatrix(decompose(target, k))
    if k != 0:
        raise UnsupportedError(
            f"Of an operator only the largest singular value has this form (k = 0), got k = {k}; give its matrix."
        )
    return _of_operator(target)


@final
@dataclass(frozen=True, eq=False)
class _OfMatrix(SingularValueHessian):
    """With a = X v, b = X'u: X -> g v' + u h', (g; h) = -S (a; b), S the reduced resolvent of [0 A; A' 0]."""

    at: Decomposition

    @property
    def in_shape(self) -> Shape:
        return (self.at.left.shape[0], self.at.right.shape[0])

    def _apply(self, x: Tensor) -> Tensor:
        g, h, _, _ = self._vectors(x)
        return g.unsqueeze(2) * self.at.v + self.at.u.unsqueeze(1) * h.unsqueeze(1)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._apply(y)

    def _vectors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(torch.float64)
        a, b = wide @ self.at.v, self.at.u @ wide
        g, h = self.at.resolvent(a, b)
        return -g, -h, a, b

    def form(self, x: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        g, h, a, b = self._vectors(x)
        return (a * g).sum(-1) + (b * h).sum(-1)

    def triplet(self) -> tuple[float, Float64[Tensor, "..."], Float64[Tensor, "..."]]:
        return self.at.value, self.at.u, self.at.v

    def trace(self) -> float:
        return float(self.spectrum().sum())

    def diagonal(self) -> Float64[Tensor, "..."]:
        left, right, s, value = self.at.left, self.at.right, self.at.values, self.at.value
        u, v = self.at.u, self.at.v
        distance = (value - s) * (value + s)
        # The value itself has no term.
        distance[self.at.k] = torch.inf
        weights = 1 / distance
        rows, columns = left.square() @ weights * value, right.square() @ weights * value
        # What the singular vectors do not span has weight 1 / sigma_k.
        rows = rows + (1 - left.square().sum(1)) / value
        columns = columns + (1 - right.square().sum(1)) / value
        mixed = (left * u.unsqueeze(1) * (2 * s * weights)) @ (right * v.unsqueeze(1)).mT
        return torch.outer(rows, v.square()) + torch.outer(u.square(), columns) + mixed

    def spectrum(self) -> Float64[Tensor, " count"]:
        s, k = self.at.values, self.at.k
        others = torch.cat([s[:k], s[k + 1 :]])
        rows, columns = self.in_shape
        outside = s.new_full((abs(rows - columns),), 1 / self.at.value)
        return torch.cat([1 / (s[k] - others), 1 / (s[k] + others), outside]).sort(descending=True).values


@final
@dataclass(frozen=True, eq=False)
class _OfOperator(SingularValueHessian):
    """With a = A(X) v, b = A(X)'u: (g; h) solves (sigma - [0 A; A' 0]) (g; h) = (a; b) off (u; v), by conjugate
    gradients, and the product is the gradient of <g, A(X) v> + <u, A(X) h> in X.
    """

    op: LinearOperator
    left: Float64[Tensor, "..."]
    right: Float64[Tensor, "..."]
    value: Float64[Tensor, ""]

    @property
    def in_shape(self) -> Shape:
        return tuple(self.op.tensors()[_weight(self.op)].shape)

    def _apply(self, x: Tensor) -> Tensor:
        g, h, _, _ = self._vectors(x)
        one, position, tensors = self.value.new_ones(1), _weight(self.op), self.op.tensors()
        found: list[Tensor] = []
        for row, column in zip(g, h, strict=True):
            first = pull_back(self.op, tensors, row[None], self.right[None], one)[position]
            second = pull_back(self.op, tensors, self.left[None], column[None], one)[position]
            assert first is not None, "the weight is a floating-point tensor"
            assert second is not None, "the weight is a floating-point tensor"
            found.append(first + second)
        return torch.stack(found) if found else x.to(torch.float64)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self._apply(y)

    def form(self, x: Float[Tensor, "..."]) -> Float64[Tensor, "..."]:
        batch = x.shape[: x.ndim - len(self.in_shape)]
        g, h, a, b = self._vectors(x.reshape(-1, *self.in_shape))
        return ((a * g).flatten(1).sum(1) + (b * h).flatten(1).sum(1)).reshape(batch)

    def _vectors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        position, tensors = _weight(self.op), list(self.op.tensors())
        images: list[tuple[Tensor, Tensor]] = []
        for kernel in x.to(self.value):
            tensors[position] = kernel
            moved = self.op.with_tensors(tuple(tensors))
            images.append((moved.apply(self.right), moved.adjoint(self.left)))
        if not images:
            empty = self.left.new_zeros(0, *self.left.shape), self.right.new_zeros(0, *self.right.shape)
            return *empty, *empty
        a, b = torch.stack([a for a, _ in images]), torch.stack([b for _, b in images])
        count = len(images)
        left, right = self.left.expand(count, *self.left.shape), self.right.expand(count, *self.right.shape)
        try:
            g, h = solve_for_vectors(self.op, self.value.expand(count), left, right, a, b)
        except NotProvenError as error:
            raise NotProvenError(
                f"The second derivative of the norm of {self.op} did not converge: its largest singular value is "
                "repeated and splits in this direction, or nearly so; change the weight a little."
            ) from error
        return g, h, a, b

    def triplet(self) -> tuple[float, Float64[Tensor, "..."], Float64[Tensor, "..."]]:
        return float(self.value), self.left, self.right

    def trace(self) -> float:
        return float(self.diagonal().sum())

    def diagonal(self) -> Float64[Tensor, "..."]:
        return torch.cat([self.form(units) for units in self._units("diagonal")]).reshape(self.in_shape)

    def spectrum(self) -> Float64[Tensor, " count"]:
        rows = torch.cat([self.apply(units).flatten(1) for units in self._units("spectrum")])
        values = torch.linalg.eigvalsh((rows + rows.mT) / 2).flip(0)
        # A norm is convex, so what is below zero is left of the iterations too.
        return values[values > _ZERO * values[0].clamp(min=0)]

    def _units(self, wanted: str) -> Iterator[Float64[Tensor, "some ..."]]:
        """The unit kernels, some at a time; refuses weights of more entries than is sensible."""
        count = math.prod(self.in_shape)
        if count > _MOST_ENTRIES:
            raise UnsupportedError(
                f"The {wanted} of the Hessian of the norm of {self.op} takes a product for each of {count} entries of "
                f"its weight, and at most {_MOST_ENTRIES} are taken; use analysis.estimate_trace(hessian), "
                "analysis.extreme_eigenvalues(hessian), or form(X) with the unit kernels you need."
            )
        for places in torch.arange(count, device=self.value.device).split(_AT_ONCE):
            chosen = torch.nn.functional.one_hot(places, count).to(self.value)
            yield chosen.reshape(-1, *self.in_shape)


def _weight(op: LinearOperator) -> int:
    """The position of the one weight among the tensors of an operator that is linear in it; refuses all others."""
    floating = [i for i, t in enumerate(op.tensors()) if t.is_floating_point() or t.is_complex()]
    holders = [leaf for leaf in _leaves(op) if any(t.is_floating_point() or t.is_complex() for t in leaf.tensors())]
    linear = all(isinstance(leaf, CircularConv | Conv | ConvTranspose | Dense | Diagonal) for leaf in holders)
    if len(floating) != 1 or not linear or op.tensors()[floating[0]].is_complex():
        raise UnsupportedError(
            f"{op} has {len(floating)} weights; the Hessian is taken in the one real weight that the operator is "
            "linear in, as a matrix, a diagonal or a convolution is; give one of these."
        )
    return floating[0]


def _leaves(op: LinearOperator) -> list[LinearOperator]:
    parts = parts_of(op)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [op]


def _of_operator(op: LinearOperator) -> SingularValueHessian:
    position = _weight(op)
    fixed = op.to(torch.float64).map(Tensor.detach)
    if not bool(torch.isfinite(fixed.tensors()[position]).all()):
        raise NonFiniteError(f"{op} has NaN or infinite weights, so its norm has no derivatives; repair them first.")
    if not bool(fixed.tensors()[position].any()):
        raise ArgumentError(f"{op} is zero, where its norm has no derivatives; give another weight.")
    search = Lanczos(steps=100, rtol=0.0, seed=0)
    state, residual = None, float("inf")
    for _ in range(_ROUNDS):
        found = search(fixed, state=state)
        assert found.witness is not None, "Lanczos gives vectors"
        state, left = found.state, found.witness.left
        # One more application makes the pair (left, right) exact on one side.
        right = fixed.adjoint(left)
        value = torch.linalg.vector_norm(right)
        right = right / value
        image = fixed.apply(right)
        value = torch.linalg.vector_norm(image)
        left = image / value
        residual = float(torch.linalg.vector_norm(fixed.adjoint(left) - value * right) / value)
        if residual <= _CONVERGED:
            return _OfOperator(fixed, left, right, value)
    raise NotProvenError(
        f"The singular vectors of {op} did not converge: a residual of {residual:.1e} is left after {_ROUNDS} rounds "
        f"of {search.steps} steps; its largest singular values are too close."
    )
