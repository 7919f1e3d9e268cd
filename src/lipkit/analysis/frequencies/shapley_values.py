"""Shapley values of games with few players: what each of them adds, averaged over all orders in which they come."""

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import NonFiniteError, ShapeError


def shapley(values: Float[Tensor, "*batch coalitions"]) -> Float64[Tensor, "*batch players"]:
    """The Shapley value of each player of a game that is given by the worth of all 2^n coalitions.

        psi_i = sum over T without i of (v(T + i) - v(T)) / (n C(n - 1, |T|)),   bit i of an index says: i is in T.

    Guarantee: exact up to rounding; sums to v(all) - v(none). Cost: n 2^n additions. References: Shapley 1953; the
    weight of Luo 2025, equation 6.35, is printed without the inverse of the binomial coefficient.
    """
    players = values.shape[-1].bit_length() - 1 if values.ndim else 0
    if players < 1 or values.shape[-1] != 2**players:
        raise ShapeError(f"A game of n players has 2^n values along the last axis, got shape {tuple(values.shape)}.")
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError("Some values of the game are NaN or infinite.")
    wide = values.double()
    others = torch.arange(2 ** (players - 1), device=values.device)
    sizes = torch.stack([others >> bit & 1 for bit in range(players)]).sum(0)
    table = [1 / (players * math.comb(players - 1, size)) for size in range(players)]
    weights = torch.tensor(table, dtype=torch.float64, device=values.device)[sizes]
    found: list[Tensor] = []
    for player in range(players):
        pairs = wide.unflatten(-1, (2 ** (players - 1 - player), 2, 2**player))
        added = (pairs[..., 1, :] - pairs[..., 0, :]).flatten(-2)
        found.append(added @ weights)
    return torch.stack(found, -1)
