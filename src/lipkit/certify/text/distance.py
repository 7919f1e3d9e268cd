"""Distances between sequences: how many edits, or how much editing."""

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


def levenshtein(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The least number of insertions, deletions and substitutions that turn a into b; a metric.

        D(i, j) = min(D(i-1, j) + 1, D(i, j-1) + 1, D(i-1, j-1) + [a_i != b_j])

    Cost: |a| |b| steps, two rows of memory. For many pairs `levenshtein_many`. Reference: Levenshtein 1966; Wagner,
    Fischer 1974.
    """
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def levenshtein_many(
    a: Int[Tensor, "n left"],
    b: Int[Tensor, "n right"],
    a_lengths: Int[Tensor, " n"],
    b_lengths: Int[Tensor, " n"],
) -> Int[Tensor, " n"]:
    """`levenshtein` of n pairs of padded sequences; what lies beyond a length is ignored.

    A row is one pass for all pairs: D(i, j) - j is a running minimum over j. Cost: max |a| passes over (n, max |b|).
    """
    for lengths, tokens in ((a_lengths, a), (b_lengths, b)):
        if len(lengths) and not (int(lengths.min()) >= 0 and int(lengths.max()) <= tokens.shape[1]):
            raise ArgumentError(f"Lengths must lie in 0..{tokens.shape[1]}, got {lengths.tolist()[:8]}.")
    columns = torch.arange(b.shape[1] + 1, device=a.device)
    row = columns.expand(len(a), -1)
    ends = [row.gather(1, b_lengths[:, None].long())]
    for i in range(a.shape[1]):
        substituted = row[:, :-1] + (a[:, i : i + 1] != b)
        above = torch.cat([row[:, :1] + 1, torch.minimum(row[:, 1:] + 1, substituted)], 1)
        row = (above - columns).cummin(1).values + columns
        ends.append(row.gather(1, b_lengths[:, None].long()))
    return torch.cat(ends, 1).gather(1, a_lengths[:, None].long()).squeeze(1)


def erp(a: Float[Tensor, "left dim"], b: Float[Tensor, "right other"], p: float = 2.0) -> Float64[Tensor, ""]:
    """Edit distance with real penalty between sequences of vectors.

        D(i, j) = min(D(i-1, j) + ||a_i||_p, D(i, j-1) + ||b_j||_p, D(i-1, j-1) + ||a_i - b_j||_p)

    On one-hot sequences with p = inf it is the Levenshtein distance. Inserted zero vectors cost nothing, so it is a
    metric only between sequences without zero vectors. Cost: |a| |b| steps. Reference: Chen, Ng 2004.
    """
    if a.shape[1] != b.shape[1]:
        raise ShapeError(f"Both sequences need vectors of one size, got {a.shape[1]} and {b.shape[1]}.")
    if not p >= 1:
        raise ArgumentError(f"A norm exponent lies in [1, inf], got {p}.")
    left, right = a.detach().to(torch.float64), b.detach().to(torch.float64)
    drop = torch.linalg.vector_norm(left, ord=p, dim=1).tolist()
    add = torch.linalg.vector_norm(right, ord=p, dim=1).tolist()
    change = torch.linalg.vector_norm(left[:, None] - right[None], ord=p, dim=2).tolist()
    row = [0.0]
    for cost in add:
        row.append(row[-1] + cost)
    for i, gone in enumerate(drop):
        diagonal, row[0] = row[0], row[0] + gone
        for j, new in enumerate(add, 1):
            diagonal, row[j] = row[j], min(row[j] + gone, row[j - 1] + new, diagonal + change[i][j - 1])
    return torch.tensor(row[-1], dtype=torch.float64)
