"""Estimates the spectrum of a symmetric operator from products with it: ends, trace, density. Nothing is proven."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import scipy
import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._seeds import derive_seed, generator
from lipkit.analysis.curvature.loss_hessian import Hessian
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.linops import LinearOperator

# A remainder of this share of the largest coefficient is rounding: the start lies in an invariant subspace.
_BREAKDOWN = 1e-12


@final
@dataclass(frozen=True, eq=False)
class ExtremeEigenvalues:
    """The ends of a spectrum. Within `residuals` of each value there is an eigenvalue, if products are exact."""

    smallest: float
    largest: float
    residuals: tuple[float, float]
    vectors: tuple[Float64[Tensor, " n"], Float64[Tensor, " n"]] = field(repr=False)

    @property
    def norm(self) -> float:
        """The larger of both in absolute value: the spectral norm."""
        return max(abs(self.smallest), abs(self.largest))


@final
@dataclass(frozen=True)
class TraceEstimate:
    """A mean over probes, and its standard error."""

    value: float
    standard_error: float


@final
@dataclass(frozen=True, eq=False)
class SpectralDensity:
    """The eigenvalues as a distribution: `nodes` with `weights` that sum to 1, averaged over probes."""

    nodes: Float64[Tensor, " count"]
    weights: Float64[Tensor, " count"]

    def density(self, at: Float64[Tensor, " points"], width: float) -> Float64[Tensor, " points"]:
        """The density, each node spread to a Gaussian of standard deviation `width`."""
        if not width > 0:
            raise ArgumentError(f"The width of a density is a number > 0, got {width}.")
        apart = (at.unsqueeze(1) - self.nodes) / width
        return (torch.exp(-apart.square() / 2) @ self.weights) / (width * math.sqrt(2 * math.pi))

    def share_between(self, low: float, high: float) -> float:
        """The share of eigenvalues in [low, high]."""
        return float(self.weights[(self.nodes >= low) & (self.nodes <= high)].sum())


def extreme_eigenvalues(op: LinearOperator, steps: int = 100, rtol: float = 1e-6, seed: int = 0) -> ExtremeEigenvalues:
    """Smallest and largest eigenvalue of a symmetric operator by Lanczos, until both residuals are below rtol.

    A Ritz value never leaves the spectrum, so `largest` is too small rather than too large, up to rounding.

    Guarantee: ESTIMATE. Cost: at most `steps` products, and as many vectors in float64.

    Args:
        op: Symmetric; this is believed.
        steps: The most products.
        rtol: The residual to reach, relative to the larger end.
        seed: Of the start.
    """
    product, n = _products(op)
    start = torch.randn(n, dtype=torch.float64, generator=generator(seed)).to(op.device)
    basis, diag, offdiag = _tridiagonalize(product, start, _positive("steps", steps), rtol)
    values, vectors = scipy.linalg.eigh_tridiagonal(diag, offdiag[:-1])
    residuals = offdiag[-1] * float(abs(vectors[-1, 0])), offdiag[-1] * float(abs(vectors[-1, -1]))
    first, last = torch.from_numpy(vectors[:, [0, -1]].copy()).to(basis).mT @ basis
    return ExtremeEigenvalues(float(values[0]), float(values[-1]), residuals, (first, last))


def estimate_trace(op: LinearOperator, probes: int = 100, seed: int = 0) -> TraceEstimate:
    """The trace of a symmetric operator, the mean of <z, A z> over random signs z, and its standard error.

    The mean is unbiased; its variance is 2 / probes times the sum of the squares off the diagonal.

    Guarantee: ESTIMATE. Cost: one product for each probe. Reference: Hutchinson 1990.
    """
    if probes < 2:
        raise ArgumentError(f"A standard error needs at least two probes, got {probes}.")
    product, n = _products(op)
    source = generator(seed)
    found: list[float] = []
    for _ in range(probes):
        z = _signs(n, source).to(op.device)
        found.append(float(torch.dot(z, product(z))))
    forms = torch.tensor(found, dtype=torch.float64)
    return TraceEstimate(float(forms.mean()), float(forms.std() / math.sqrt(probes)))


def spectral_density(op: LinearOperator, probes: int = 10, steps: int = 50, seed: int = 0) -> SpectralDensity:
    """The distribution of the eigenvalues of a symmetric operator by stochastic Lanczos quadrature.

    Each probe gives the Gauss rule of its own spectral measure: eigenvalues of the tridiagonal matrix, weighted by the
    squared first entries of its vectors. Moments up to 2 steps - 1 are those of the operator, in expectation.

    Guarantee: ESTIMATE. Cost: probes times steps products. Reference: Ubaru, Chen and Saad 2017.
    """
    product, n = _products(op)
    _positive("steps", steps)
    nodes: list[Tensor] = []
    weights: list[Tensor] = []
    for probe in range(_positive("probes", probes)):
        start = _signs(n, generator(derive_seed(seed, probe))).to(op.device)
        _, diag, offdiag = _tridiagonalize(product, start, steps, 0.0)
        values, vectors = scipy.linalg.eigh_tridiagonal(diag, offdiag[:-1])
        nodes.append(torch.from_numpy(values))
        weights.append(torch.from_numpy(vectors[0] ** 2) / probes)
    return SpectralDensity(torch.cat(nodes), torch.cat(weights))


def _products(op: LinearOperator) -> tuple[Callable[[Tensor], Tensor], int]:
    """v -> A v for flat vectors in float64, computed in the precision of the operator."""
    if op.in_shape != op.out_shape:
        raise ShapeError(f"Eigenvalues need an operator from a space to itself, got {op}.")
    dtype = op.dtype
    if dtype.is_complex:
        raise ArgumentError(f"These estimates are for real operators, got {dtype}.")
    inner = op.products() if isinstance(op, Hessian) else lambda v: op.apply(v.reshape(op.in_shape)).flatten()

    def product(v: Tensor) -> Tensor:
        with torch.no_grad():
            image = inner(v.to(dtype)).detach().to(torch.float64)
        if not bool(torch.isfinite(image).all()):
            raise NonFiniteError(f"A product with {op} has NaN or infinite entries; check weights and data.")
        return image

    return product, op.in_size


def _signs(n: int, source: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (n,), generator=source).to(torch.float64) * 2 - 1


def _tridiagonalize(
    product: Callable[[Tensor], Tensor], start: Tensor, steps: int, rtol: float
) -> tuple[Tensor, list[float], list[float]]:
    """Lanczos with full reorthogonalisation, for indefinite operators too; stops early if both ends have converged."""
    basis, diag, offdiag = [start / torch.linalg.vector_norm(start)], [], []
    steps, largest = min(steps, len(start)), 0.0
    for step in range(1, steps + 1):
        w = product(basis[-1])
        diag.append(float(torch.dot(basis[-1], w)))
        known = torch.stack(basis)
        # Twice is enough.
        for _ in range(2):
            w = w - known.mT @ (known @ w)
        length = float(torch.linalg.vector_norm(w))
        offdiag.append(length)
        largest = max(largest, abs(diag[-1]), length)
        if step == steps or length <= _BREAKDOWN * largest or (rtol and _converged(diag, offdiag, rtol)):
            return known, diag, offdiag
        basis.append(w / length)
    raise AssertionError("unreachable: steps >= 1")


def _converged(diag: list[float], offdiag: list[float], rtol: float) -> bool:
    values, vectors = scipy.linalg.eigh_tridiagonal(diag, offdiag[:-1])
    residual = offdiag[-1] * max(abs(vectors[-1, 0]), abs(vectors[-1, -1]))
    return bool(residual <= rtol * max(abs(values[0]), abs(values[-1])))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ArgumentError(f"{name} must be at least 1, got {value}.")
    return value
