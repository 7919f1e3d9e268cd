"""The singular values of the linear layers of a network."""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import Kind
from lipkit.bounds.fold.operator_words import describe, name_origin
from lipkit.linops import Conv, ConvTranspose, Dense, LinearOperator, factors, materialize, symbol
from lipkit.report.results.contents import Spectra, Spectrum
from lipkit.trace import Network

# Multiplications for one decomposition, about a second, and for all of one report.
_EACH, _ALL = 6e8, 6e9
# Layers shown, and values kept of each: a curve needs no more.
_LAYERS, _VALUES = 12, 256


def spectra(network: Network) -> Spectra:
    """The singular values of every dense and convolutional layer, as far as they are computed in seconds.

    A map of m x n is written out and decomposed in float64 while m n min(m, n) is small (EXACT, to rounding, which no
    certificate uses). A larger convolution is given by its symbol on the torus, E(w) for all frequencies w, which is
    the convolution with circular padding: an ESTIMATE of its spectrum with any other. What is larger still is left out,
    and of more than twelve layers the largest ones are kept; both are said. Cost: a second a layer, ten in all.
    """
    found = [(name, op) for name, op in _layers(network) if op.in_size and op.out_size]
    kept = sorted(sorted(range(len(found)), key=lambda i: -found[i][1].in_size * found[i][1].out_size)[:_LAYERS])
    shown: list[Spectrum] = []
    smaller = [one for i, one in enumerate(found) if i not in kept]
    left_out = [f"{name} ({describe(op)}): only the {_LAYERS} largest layers are shown." for name, op in smaller]
    spent = 0.0
    for name, op in (found[i] for i in kept):
        dense, torus = _dense_cost(op), _torus_cost(op)
        cost, kind = (dense, Kind.EXACT) if dense <= _EACH or torus is None else (torus, Kind.ESTIMATE)
        if cost > _EACH or spent + cost > _ALL:
            left_out.append(f"{name} ({describe(op)}): too large to decompose in seconds.")
            continue
        spent += cost
        values = torch.linalg.svdvals(materialize(op)) if kind is Kind.EXACT else _on_torus(op)
        shown.append(Spectrum(name, describe(op), _some(values), len(values), kind))
    return Spectra(tuple(shown), tuple(left_out))


def _layers(network: Network) -> list[tuple[str, LinearOperator]]:
    """Dense and convolutional maps in the order of the network, in float64, with the module they come from."""
    network = network.detach().to(torch.float64, "cpu")
    return [
        (name_origin(network.origin(k)) or "a node", factor)
        for (k, _), op in sorted(network.blocks.items())
        for factor in reversed(factors(op))
        if isinstance(factor, Dense | Conv | ConvTranspose)
    ]


def _dense_cost(op: LinearOperator) -> float:
    return float(op.in_size) * op.out_size * min(op.in_size, op.out_size)


def _torus_cost(op: LinearOperator) -> float | None:
    if not isinstance(op, Conv | ConvTranspose):
        return None
    known = symbol(op)
    *_, groups, rows, cols = known.kernel.shape[: -len(known.torus)]
    return 4.0 * math.prod(known.torus) * groups * rows * cols * min(rows, cols)


def _on_torus(op: LinearOperator) -> Float64[Tensor, " values"]:
    known = symbol(op)
    points = known.frequencies(known.torus)
    sizes = torch.tensor(known.torus)
    # One of each pair of frequencies w, -w stands for both.
    times = torch.where((points == -points % sizes).all(1), 1, 2)
    values = torch.linalg.svdvals(known.at(points, known.torus)).flatten(1)
    return values.repeat_interleave(times, dim=0).flatten().sort(descending=True).values


def _some(values: Float64[Tensor, " values"]) -> tuple[float, ...]:
    places = torch.linspace(0, len(values) - 1, min(len(values), _VALUES)).round().long()
    return tuple(values[places].tolist())
