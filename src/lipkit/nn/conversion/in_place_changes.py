"""Tensors that a model changes in place and uses again: a twin computes out of place, so it would differ."""

import inspect
import operator
from collections.abc import Callable
from typing import cast

from torch import fx, nn

from lipkit.nn.conversion import functions

# Modules whose output may share memory with their input.
_VIEWS = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_IN_PLACE = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})


def find_overwritten(body: fx.GraphModule) -> frozenset[fx.Node]:
    """The operations in place that change a tensor which is read later under another name, or whose result is unused.

    Tensors that may share memory (views, cut-outs, results in place) count as one. What is read before the change does
    not matter.
    """
    roots: dict[fx.Node, fx.Node] = {}
    place = {node: index for index, node in enumerate(body.graph.nodes)}
    changed: list[fx.Node] = []
    for node in body.graph.nodes:
        source = next(iter(node.all_input_nodes), None)
        in_place = _changes_its_input(body, node)
        shared = source is not None and (in_place or _may_share(body, node))
        roots[node] = roots[source] if source is not None and shared else node
        changed += [node] if in_place else []
    return frozenset(node for node in changed if not node.users or _is_read_later(node, roots, place))


def _is_read_later(node: fx.Node, roots: dict[fx.Node, fx.Node], place: dict[fx.Node, int]) -> bool:
    later = [other for other in place if place[other] > place[node]]
    results = {node}
    for other in later:
        # A use of the result is a use of the changed tensor itself.
        if roots[other] is roots[node] and not results.isdisjoint(other.all_input_nodes):
            results.add(other)
    aliases = {other for other, root in roots.items() if root is roots[node]} - results
    return any(not aliases.isdisjoint(other.all_input_nodes) for other in later)


def _changes_its_input(body: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return getattr(body.get_submodule(str(node.target)), "inplace", False) is True
    if node.op not in ("call_function", "call_method"):
        return False
    name = functions.name_of(node.target)
    # Names such as __getitem__ end with an underscore too.
    named = name.endswith("_") and not name.endswith("__")
    return named or node.target in _IN_PLACE or _argument(node, "inplace") is True


def _argument(node: fx.Node, name: str) -> object:
    """An argument of a function of torch.nn.functional, given by name or by position; None without it."""
    if name in node.kwargs or node.op != "call_function":
        return node.kwargs.get(name)
    try:
        names = list(inspect.signature(cast("Callable[..., object]", node.target)).parameters)
    except ValueError:
        # Functions that are not written in Python have no such argument.
        return None
    return dict(zip(names, node.args, strict=False)).get(name)


def _may_share(body: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(body.get_submodule(str(node.target)), _VIEWS)
    return node.target in functions.MOVES or node.target is operator.getitem
