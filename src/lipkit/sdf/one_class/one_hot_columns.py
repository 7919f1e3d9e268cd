"""Proposals for tables with categories that are spread over columns, one of them on in each row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.sdf.given_numbers import as_whole
from lipkit.sdf.one_class.proposals import GaussianColumns, Proposal


@final
@dataclass(frozen=True)
class OneHotColumns(Proposal):
    """Uniform categories in groups of one-hot columns, and another proposal in all other columns.

    In each group one column, drawn uniformly and independently of the rows, has its larger value and all others their
    smaller one. Both are read from the rows, so columns may be standardised. The domain of such a column lies between
    its two values: walks leave the corners, as the distance between categories is what a network must learn.

    Cost: that of the other proposal, and one number for each group.
    Reference: the code of Béthune 2024 draws categories uniformly; groups of any position are ours.

    Args:
        groups: The columns of each category, two or more; no column is in two groups.
        others: Draws what is in no group.
    """

    groups: Sequence[Sequence[int]]
    others: Proposal = field(default_factory=GaussianColumns)

    def __post_init__(self) -> None:
        columns = [as_whole(column, "A column of a category") for column in chain(*self.groups)]
        if not columns or any(len(group) < 2 for group in self.groups):
            raise ArgumentError(f"Categories have two columns or more each, got groups={self.groups}.")
        if len(set(columns)) < len(columns) or min(columns) < 0:
            raise ArgumentError(f"Each column, counted from 0, is in one group at most, got groups={self.groups}.")

    def draw(self, rows: Float[Tensor, "n d"], count: int, source: torch.Generator) -> Float[Tensor, "m d"]:
        found = self.others.draw(rows, count, source)
        for group in self.groups:
            low, high = _values(rows, group)
            chosen = torch.randint(len(group), (count, 1), device=rows.device, generator=source)
            on = torch.arange(len(group), device=rows.device) == chosen
            found[:, list(group)] = torch.where(on, high, low)
        return found

    def box(self, rows: Float[Tensor, "n d"]) -> tuple[Tensor, Tensor]:
        low, high = (end.clone() for end in self.others.box(rows))
        for group in self.groups:
            low[list(group)], high[list(group)] = _values(rows, group)
        return low, high


def _values(rows: Tensor, group: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The value of each column of a group where it is off, and where it is on."""
    if rows.ndim != 2 or max(group) >= rows.shape[1]:
        raise ArgumentError(f"Rows of shape {tuple(rows.shape[1:])} have no column {max(group)} of a category.")
    inside = rows[:, list(group)]
    low, high = inside.amin(0), inside.amax(0)
    on = inside == high
    if not bool((on | (inside == low)).all() & (low < high).all() & (on.sum(1) == 1).all()):
        raise ArgumentError(
            f"The columns {tuple(group)} are no category: each has two values in the rows, and in each row one is on."
        )
    return low, high
