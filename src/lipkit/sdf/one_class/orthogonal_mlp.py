"""The network of tables: plain orthogonal layers, for optimizers that keep them so."""

from collections.abc import Sequence
from numbers import Integral

import torch
from torch import nn

from lipkit.errors import ArgumentError
from lipkit.nn import ChannelPairing, MaxMin


def orthogonal_mlp(dim: int, widths: Sequence[int], source: torch.Generator | None = None) -> nn.Sequential:
    """Dense layers with orthonormal rows or columns, a MaxMin behind each but the last, and one output.

    Orthogonal matrices and sorted pairs keep the norm of gradients, so the network can have slope one everywhere, as a
    distance has. Nothing is computed in the forward pass: train it with `optim.StiefelMuon`.

    Guarantee: constant 1 up to rounding at the start; lipkit proves that of the trained weights.

    Args:
        dim: How many coordinates a point has.
        widths: Even numbers of neurons, one for each hidden layer; at least one.
        source: Where the weights are drawn from; torch's global generator if None.
    """
    if not widths or any(isinstance(w, bool) or not isinstance(w, Integral) or w < 2 or w % 2 for w in widths):
        raise ArgumentError(f"widths are even numbers of neurons, one for each hidden layer, got {tuple(widths)}.")
    layers: list[nn.Module] = []
    for before, after in zip((dim, *widths), (*widths, 1), strict=True):
        layer = nn.Linear(before, after)
        nn.init.orthogonal_(layer.weight, generator=source)
        nn.init.zeros_(layer.bias)
        layers += [layer, MaxMin(pairing=ChannelPairing.HALVES)]
    return nn.Sequential(*layers[:-1])


def find_widths(model: nn.Module) -> tuple[int, ...] | None:
    """The widths with which `orthogonal_mlp` makes the layers of a network; None if other layers are in it."""
    if not isinstance(model, nn.Sequential) or len(model) % 2 == 0:
        return None
    linear, sorts = list(model)[::2], list(model)[1::2]
    if not all(type(one) is nn.Linear and one.bias is not None for one in linear):
        return None
    if not all(isinstance(one, MaxMin) and one.pairing is ChannelPairing.HALVES for one in sorts):
        return None
    return tuple(one.out_features for one in linear[:-1] if isinstance(one, nn.Linear)) or None
