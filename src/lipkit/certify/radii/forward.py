"""Logits with a bound of their own rounding error: a certificate is about real arithmetic, a computer is not."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from lipkit.bound import Fingerprint
from lipkit.bounds._base import Snapshot
from lipkit.bounds.lipschitz import Example, Model, network_of
from lipkit.bounds.local.measured_network import deterministic_norm
from lipkit.bounds.local.whole_space import know_whole_space
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from lipkit.linops import LinearOperator, depth, magnitude
from lipkit.norms._base import plain_arithmetic
from lipkit.rounding.float64 import gamma, vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8192, UNIT
from lipkit.trace import Network
from lipkit.trace.nodes import Interpolation, Product

# Covers the rounding of the few sums and products of numbers >= 0 that one error is made of.
_INFLATION = 1 + ROUNDINGS_8192
# The Jacobian of a product changes by the distance of two inputs, in l2, that of a weighted mean by sqrt(2) times it.
_WIDENING = 2.0


@final
@dataclass(frozen=True, eq=False)
class Logits:
    """Outputs in float64, and for each sample a number that none of its outputs is farther from the truth than.

    `subject` is the network that gave them, if that is known: a bound of another one is refused.
    """

    value: Float64[Tensor, "batch classes"]
    error: Float64[Tensor, " batch"]
    subject: Fingerprint | None = None


@final
@dataclass(frozen=True)
class _Block:
    """The sizes of one operator A that rounding depends on: ||A||, || |A| || and the roundings behind one entry."""

    norm: float
    magnitude: float
    slack: float


@final
class Forward:
    """A classifier evaluated in float64 with a running bound of its rounding error.

    With e_j >= ||fl(y_j) - y_j||_2, row after row,

        e(z_k) = sum_j (||A_kj|| e_j + gamma m_kj) + gamma (sum_j m_kj + ||b_k||),   m_kj = || |A_kj| || ||fl(y_j)||,
        e_k    = Lip(phi_k) e(z_k) + n_k 2^-53 (||fl(y_k)|| + Lip(phi_k) ||z_k||),

    where fl is what float64 computes and n_k what a node says of its own evaluation. Errors pass through norms, not
    through absolute values, so that forty orthogonal layers multiply an error by one.

    Guarantee: ||logits - f(x)||_2 <= error in real arithmetic, for the inputs as stored and the weights as the model
    computes them in its own dtype (a parametrised weight is what torch makes of its parameters). Modules that declare
    their constants are trusted to half of their digits. Products and weighted means of bounded factors, the gates of an
    LSTM or a GRU, have a constant C where the true values lie; computed values may lie outside, by e(z_k), so
    Lip(phi_k) is C + 2 e(z_k) for them. Cost: one evaluation in float64; the norm of every operator once. Other nodes
    without a global constant (attention, unbounded products) are refused: certify those with a given error.
    """

    def __init__(self, model: Model, example: Example = None) -> None:
        # As captured, a row for each operation: fusing would add up biases, with roundings of its own.
        with torch.no_grad():
            network = network_of(model, example).detach().to(torch.float64)
        if len(network.target) != 1:
            raise ShapeError(
                f"A classifier has one axis of outputs, got outputs of shape {network.target}; give a model with a "
                "single score as `attacks.TwoClasses(model)`."
            )
        bounded = _know_gates(network)
        bounded.require_constants(
            2.0,
            "The rounding error of the logits is bounded by constants that hold everywhere: replace the operation, or "
            "declare a constant of its module with `declared_lipschitz`.",
        )
        self.network: Network = network
        self.subject: Fingerprint = Snapshot(network)
        self._blocks: Mapping[tuple[int, int], _Block] = {at: _block(op) for at, op in network.blocks.items()}
        self._constants = [math.exp(float(node.log_constant(2.0).detach())) * _INFLATION for node in bounded.nodes]
        self._widening = [
            0.0 if own is node else _WIDENING for own, node in zip(network.nodes, bounded.nodes, strict=True)
        ]
        # Relative to the computed size instead of the true one, which is 1 / (1 - n u) times as much.
        self._own = [node.roundings * UNIT / (1 - node.roundings * UNIT) * _INFLATION for node in network.nodes]
        self._biases = {k: float(torch.linalg.vector_norm(b)) * _INFLATION for k, b in network.biases.items()}
        # Without gates the error is linear in the lengths of all values, and in 1: one product instead of hundreds.
        units = torch.eye(network.sink + 2, dtype=torch.float64)
        self._weights = None if any(self._widening) else self._error(units, units[-1]).to(network.device)

    def __call__(self, inputs: Shaped[Tensor, "batch ..."]) -> Logits:
        """Logits of a batch, with their error."""
        if not inputs.is_floating_point():
            raise ArgumentError(f"Inputs must be floating point, got {inputs.dtype}; convert them as in training.")
        with torch.no_grad(), plain_arithmetic():
            values = self.network.values(inputs.to(torch.float64))
        value = values[-1]
        error = self._error_of(values, _lengths)
        if not bool(torch.isfinite(error).all()):
            error = self._error_of(values, _lengths_of_huge)
        if not bool(torch.isfinite(value).all() & torch.isfinite(error).all()):
            raise NonFiniteError(
                "The model gave NaN or infinite outputs for some inputs; check its weights and the inputs."
            )
        return Logits(value, error, self.subject)

    def _error_of(self, values: Sequence[Tensor], length: Callable[[Tensor], Tensor]) -> Float64[Tensor, " batch"]:
        sizes = torch.stack([*map(length, values), values[-1].new_ones(len(values[-1]))], 1) + 1e-150
        return self._error(sizes.T, sizes[:, -1]) if self._weights is None else (sizes @ self._weights) * _INFLATION

    def _error(
        self, sizes: Float64[Tensor, "values batch"], one: Float64[Tensor, " batch"]
    ) -> Float64[Tensor, " batch"]:
        """The recursion, for lengths of the values y_0, ..., y_K; `one` is the unit that biases are counted in."""
        errors = [torch.zeros_like(sizes[0])]
        for k, row in self.network.rows().items():
            zero = torch.zeros_like(sizes[0])
            passed, size = zero, zero + self._biases.get(k, 0.0) * one
            for j in row:
                block = self._blocks[k, j]
                passed = passed + block.norm * errors[j] + block.slack * sizes[j]
                size = size + block.magnitude * sizes[j]
            # Every term is added to zero, and the bias: as many roundings as there are terms, and two.
            error = (passed + gamma(len(row) + 2) * size) * _INFLATION
            if k < self.network.sink:
                constant = self._constants[k - 1] + self._widening[k - 1] * error
                error = (constant * error + self._own[k - 1] * (sizes[k] + constant * size)) * _INFLATION
            errors.append(error)
        return errors[-1]


def _know_gates(network: Network) -> Network:
    """The same function, in which products and weighted means know the ranges of true values on the whole space."""
    known = know_whole_space(network).nodes
    pairs = zip(network.nodes, known, strict=True)
    # Other functions may be steep right outside of their ranges, as a root is, and computed values may lie there.
    return replace(network, nodes=tuple(new if isinstance(old, Product | Interpolation) else old for old, new in pairs))


def _block(op: LinearOperator) -> _Block:
    norm = deterministic_norm(op)
    known = magnitude(op)
    size = (float(known.absolute) + known.relative * norm) * _INFLATION
    return _Block(norm, size, gamma(depth(op)) * size * _INFLATION)


def _lengths(values: Float64[Tensor, "batch ..."]) -> Float64[Tensor, " batch"]:
    """Lengths rounded up, less what squares below the smallest number lose: 1e-150 at most. Infinite from 1e154 on."""
    roundings = 8 * values[0].numel() + 64 if len(values) else 0
    return torch.linalg.vector_norm(values.flatten(1), dim=1) * ((1 + gamma(roundings)) * _INFLATION)


def _lengths_of_huge(values: Float64[Tensor, "batch ..."]) -> Float64[Tensor, " batch"]:
    return vector_norms(values.flatten(1), 2.0) * _INFLATION
