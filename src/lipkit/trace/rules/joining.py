"""Values brought into the form that nodes ask for: joined in one vector, or with their axis last."""

import math
from collections.abc import Callable, Sequence

import torch

from lipkit.linops import Index, Permute, Shape
from lipkit.trace.network import Builder, Ref
from lipkit.trace.nodes import Node


def join(b: Builder, values: Sequence[Ref]) -> Ref:
    """The entries of several values, one after the other in one vector; a value may occur more than once."""
    sizes = [math.prod(value.shape) for value in values]
    terms = []
    for value in {value.index: value for value in values}.values():
        # Equal references may differ in nothing but their place here: one operator puts them everywhere they occur.
        pieces = [
            torch.arange(size) if other.index == value.index else torch.full((size,), -1)
            for other, size in zip(values, sizes, strict=True)
        ]
        terms.append((Index(torch.cat(pieces), value.shape), value))
    return b.affine(terms)


def last_axis(b: Builder, x: Ref, axis: int) -> Ref:
    """x with one axis moved to the end."""
    rank = len(x.shape)
    order = [i for i in range(rank) if i != axis % rank] + [axis % rank]
    return x if order == list(range(rank)) else b.linear(Permute(x.shape, tuple(order)), x)


def axis_back(b: Builder, y: Ref, axis: int) -> Ref:
    """The inverse of `last_axis`; the last axis may have changed its length."""
    rank = len(y.shape)
    order = list(range(rank - 1))
    order.insert(axis % rank, rank - 1)
    return y if order == list(range(rank)) else b.linear(Permute(y.shape, tuple(order)), y)


def group_axes(b: Builder, x: Ref, axes: Sequence[int]) -> tuple[Ref, Shape]:
    """x with some axes merged into one at the end, and the shape without them."""
    rank = len(x.shape)
    chosen = sorted(axis % rank for axis in axes) if axes else list(range(rank))
    kept = [i for i in range(rank) if i not in chosen]
    order = (*kept, *chosen)
    moved = x if order == tuple(range(rank)) else b.linear(Permute(x.shape, order), x)
    rest = tuple(x.shape[i] for i in kept)
    return b.reshape(moved, (*rest, math.prod(x.shape[i] for i in chosen))), rest


def drop_axes(b: Builder, y: Ref, x: Ref, axes: Sequence[int], keepdim: bool) -> Ref:
    """The result of a node on `group_axes` values, whose last axis is 1, in the shape that torch gives a reduction."""
    rank = len(x.shape)
    chosen = {axis % rank for axis in axes} if axes else set(range(rank))
    shape = [1 if i in chosen else size for i, size in enumerate(x.shape) if keepdim or i not in chosen]
    return b.reshape(y, tuple(shape))


def along(b: Builder, x: Ref, axis: int, make: Callable[[Shape], Node]) -> Ref:
    """The node that `make` gives for a shape whose last axis is the one it acts along, applied along `axis`."""
    if not x.shape:
        return b.reshape(along(b, b.reshape(x, (1,)), 0, make), ())
    moved = last_axis(b, x, axis)
    return axis_back(b, b.node(make(moved.shape), moved), axis)
