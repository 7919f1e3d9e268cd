"""A rule on one sample of arguments: the networks it makes, beside the operation itself."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lipkit.linops import Shape, select
from lipkit.trace.network import Builder, Network, Ref
from lipkit.trace.rules import RULES, Refusal, Rule, Sample


@dataclass(frozen=True, eq=False)
class Trial:
    """The networks of all results over the joined inputs (None: refused), the operation, and some inputs."""

    networks: list[Network | None]
    op: Callable[[Tensor], list[Tensor]]
    inputs: Tensor


def trial(rule: Rule, sample: Sample) -> Trial:
    """The rule, in float64; the arguments that depend on the input are flattened and joined to one vector."""
    sample = _in_float64(sample)
    leaves, spec = pytree.tree_flatten([sample.args[i] for i in sample.wrt])
    sizes = [leaf.numel() for leaf in leaves]
    shapes = [tuple(leaf.shape) for leaf in leaves]

    def arguments(parts: list[Any]) -> list[Any]:
        filled = dict(zip(sample.wrt, pytree.tree_unflatten(parts, spec), strict=True))
        return [filled.get(i, arg) for i, arg in enumerate(sample.args)]

    def op(x: Tensor) -> list[Tensor]:
        parts = [part.reshape(leaf.shape).to(leaf.dtype) for part, leaf in zip(x.split(sizes), leaves, strict=True)]
        found = rule.op(*arguments(parts), **sample.kwargs)
        return list(found) if isinstance(found, tuple | list) else [found]

    builder = Builder((sum(sizes),))
    refs = [_part(builder, sum(sizes[:i]), shape) for i, shape in enumerate(shapes)]
    found = rule.lower(builder, *arguments(list(refs)), **sample.kwargs)
    results = list(found) if isinstance(found, tuple) else [found]
    networks = [None if ref is None else builder.finish(ref, ref.shape) for ref in results]
    base = torch.cat([leaf.flatten().double() for leaf in leaves])
    # Near the sample and with its signs: a sample may stay inside a domain on purpose. A mask stays one.
    masks = torch.cat([torch.full((leaf.numel(),), leaf.dtype == torch.bool) for leaf in leaves])
    inputs = base * (0.6 + 0.8 * torch.rand(3, len(base), dtype=torch.float64))
    inputs = torch.where(masks, (inputs * torch.rand(3, len(base)) > 0.2).double(), inputs)
    return Trial(networks, op, torch.cat([base[None], inputs]))


def trial_of(op: OpOverload, sample: Sample) -> Trial:
    """The first rule of an operation that does not refuse the sample."""
    for rule in RULES[op]:
        with contextlib.suppress(Refusal):
            return trial(rule, sample)
    raise AssertionError(f"every rule of {op} refuses the sample")


def _in_float64(sample: Sample) -> Sample:
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, (sample.args, sample.kwargs)
    )
    return Sample(args, kwargs, sample.wrt)


def _part(builder: Builder, start: int, shape: Shape) -> Ref:
    key = slice(start, start + math.prod(shape))
    return builder.reshape(builder.linear(select(builder.source.shape, key), builder.source), shape)


def assert_computes(found: Trial) -> None:
    """The networks give what the operation gives, for all inputs and all results that are not refused."""
    assert any(network is not None for network in found.networks)
    images = zip(*(found.op(x) for x in found.inputs), strict=True)
    for network, image in zip(found.networks, images, strict=True):
        if network is None:
            continue
        value, expected = network(found.inputs), torch.stack(image).double()
        assert value.shape == expected.shape
        finite = torch.isfinite(expected)
        assert (value[~finite] == expected[~finite]).all()
        # At most 200 products of numbers of size 1 in another order, through at most four rows: 1e-14 or so.
        assert ((value - expected)[finite].abs() <= 1e-12 * (1 + expected[finite].abs().max())).all()
