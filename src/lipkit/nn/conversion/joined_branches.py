"""Sums, products and concatenations in a traced model, as combinations that are no larger than their parts."""

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from lipkit.nn.combinators.branch import Concat
from lipkit.nn.combinators.sums import ConvexSum
from lipkit.nn.conversion import functions
from lipkit.nn.conversion.conversion_report import ConversionVerdict
from lipkit.nn.conversion.converted_layers import Shift
from lipkit.nn.conversion.replacement import Refusal
from lipkit.nn.conversion.transfer import ConversionStart
from lipkit.nn.core.known_constants import SAFE

if TYPE_CHECKING:
    from lipkit.nn.conversion.graph_walk import Walk

# These only repeat or rearrange entries; of constants they make constants.
_OF_CONSTANTS = functions.MOVES | {"expand", "repeat", torch.tile, torch.broadcast_to, operator.getitem}


def convert_sum(walk: "Walk", node: fx.Node) -> None:
    """a + b and a - b: a convex combination of two tensors that depend on the input, a translation by a constant."""
    if len(node.args) != 2 or node.kwargs:
        raise Refusal("write the sum as a + b, without alpha")
    first, second = node.args
    live = [part for part in (first, second) if isinstance(part, fx.Node) and part in walk.scales]
    if len(live) == 1:
        _translate(walk, node, live[0], second if first is live[0] else first)
        return
    first, second = live
    if node.target in functions.SUB:
        with walk.body.graph.inserting_before(node):
            second = walk.body.graph.call_function(torch.neg, (second,))
        walk.scales[second] = walk.scales[live[1]]
    sizes = [1 / walk.scales[part] for part in (first, second)]
    keep = walk.choices.start is ConversionStart.WEIGHTS
    # Halves leave both branches their gradients. A small share of the longer one, which spares the signal along the
    # shorter, is hardly left in training.
    module = walk.place(ConvexSum((sizes[0] / sum(sizes), sizes[1] / sum(sizes)) if keep else (0.5, 0.5)))
    shares = ", ".join(f"{weight:.3g}" for weight in module.start)
    walk.report(node, ConversionVerdict.CHANGED, f"ConvexSum, starting with {shares}")
    walk.replace_node(node, module, (first, second), 1 / sum(sizes) if keep else 1.0)


def _translate(walk: "Walk", node: fx.Node, live: fx.Node, other: Any) -> None:
    scale = walk.scales[live]
    negative = node.target in functions.SUB
    if negative and node.args[0] is not live:
        # other - x: the sign of x is kept by a negation, which has constant 1.
        with walk.body.graph.inserting_before(node):
            live = walk.body.graph.call_function(torch.neg, (live,))
        walk.scales[live] = scale
        negative = False
    sign = -1.0 if negative else 1.0
    if functions.is_real(other):
        with walk.body.graph.inserting_before(node):
            new = walk.body.graph.call_function(operator.add, (live, sign * other * scale))
        walk.report(node, ConversionVerdict.KEPT, f"a translation, times {scale:.3g}")
        walk.scales[new] = scale
        node.replace_all_uses_with(new)
        walk.body.graph.erase_node(node)
        return
    if not (isinstance(other, fx.Node) and other.op == "get_attr"):
        raise Refusal("add a parameter or a buffer of the model: x + self.offset")
    offset = operator.attrgetter(str(other.target))(walk.body)
    factor = sign * scale
    known = walk.offsets.get((str(other.target), factor))
    module = Shift(offset) if known is None else known
    if known is None:
        assert isinstance(module.offset, Tensor)
        module.offset.data.mul_(factor)
        walk.offsets[str(other.target), factor] = module
    tie = "" if known is None else f", shared with the other sums with {other.target}"
    walk.report(node, ConversionVerdict.CHANGED, f"Shift, times {scale:.3g}{tie}")
    walk.replace_node(node, module, (live,), scale)


def convert_factor(walk: "Walk", node: fx.Node) -> None:
    """A product with a number, which is left out: only its sign stays."""
    first, second = (*node.args, None, None)[:2]
    live = first if first in walk.scales else second if node.target in functions.MUL else None
    factor: Any = second if live is first else first
    if not isinstance(live, fx.Node) or node.kwargs or not functions.is_number(factor):
        raise Refusal(
            "a product is Lipschitz only by a number; use a layer for factors of channels; gates have no constant on "
            "the whole space, so leave their module out of the conversion by `skip`"
        )
    value = float(factor) if node.target in functions.MUL else 1 / float(factor)
    walk.report(node, ConversionVerdict.CHANGED, f"the factor {value:.4g} left out")
    with walk.body.graph.inserting_before(node):
        new = walk.body.graph.call_function(operator.pos if value > 0 else operator.neg, (live,))
    walk.scales[new] = walk.scales[live] / abs(value)
    node.replace_all_uses_with(new)
    walk.body.graph.erase_node(node)


def convert_concatenation(walk: "Walk", node: fx.Node) -> None:
    """cat and stack: parts that depend on the input, with weights whose squares add up to 1; constants as they are.

    A constant part (a class token) adds nothing to differences of outputs.
    """
    axis: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    given: Any = node.args[0] if node.args else node.kwargs.get("tensors")
    parts = list(given) if isinstance(given, list | tuple) else []
    live = [part for part in parts if isinstance(part, fx.Node) and part in walk.scales]
    if not live or axis == 0 or not all(part in live or _is_constant(walk, part) for part in parts):
        raise Refusal(
            "concatenate tensors that depend on the input, and parameters or buffers of the model, along another axis "
            "than the batch"
        )
    if node.target in functions.STACK:
        parts = [_with_axis(walk, node, part, int(axis)) for part in parts]
        live = [part for part in parts if part in walk.scales]
    sizes = tuple(1 / walk.scales[part] for part in live)
    root = sum(size * size for size in sizes) ** 0.5
    shares = ", ".join(f"{size / root:.3g}" for size in sizes)
    if len(live) == len(parts):
        walk.report(node, ConversionVerdict.CHANGED, f"Concat, parts times {shares}")
        walk.replace_node(node, Concat(int(axis), sizes), tuple(live), 1 / root)
        return
    _join_with_constants(walk, node, parts, live, sizes, int(axis), 1 / root)


def _join_with_constants(
    walk: "Walk",
    node: fx.Node,
    parts: list[fx.Node],
    live: list[fx.Node],
    sizes: tuple[float, ...],
    axis: int,
    scale: float,
) -> None:
    """A plain concatenation whose live parts were multiplied by weights, and constants by their common scale."""
    root = sum(size * size for size in sizes) ** 0.5
    with walk.body.graph.inserting_before(node):
        scaled: dict[fx.Node, fx.Node] = {}
        for part in parts:
            factor = scale if part not in live else 1.0 if len(live) == 1 else SAFE / (root * walk.scales[part])
            scaled[part] = part if factor == 1 else walk.body.graph.call_function(operator.mul, (part, factor))
        new = walk.body.graph.call_function(torch.cat, ([scaled[part] for part in parts], axis))
    shares = ", ".join(f"{size / root:.3g}" for size in sizes)
    walk.report(node, ConversionVerdict.CHANGED, f"cat of constants and of parts times {shares}")
    walk.scales[new] = scale
    node.replace_all_uses_with(new)
    walk.body.graph.erase_node(node)


def _is_constant(walk: "Walk", part: object) -> bool:
    """Whether a tensor comes from parameters and buffers alone, rearranged or repeated."""
    if not isinstance(part, fx.Node) or part in walk.scales:
        return False
    if part.op == "get_attr":
        return True
    tensors = [arg for arg in part.all_input_nodes if not functions.reads_shape(arg)]
    return part.target in _OF_CONSTANTS and bool(tensors) and all(_is_constant(walk, arg) for arg in tensors)


def _with_axis(walk: "Walk", node: fx.Node, part: fx.Node, axis: int) -> fx.Node:
    """A part of a stack, which is a concatenation along an axis of length one."""
    with walk.body.graph.inserting_before(node):
        new = walk.body.graph.call_function(torch.unsqueeze, (part, axis))
    if part in walk.scales:
        walk.scales[new] = walk.scales[part]
    return new
