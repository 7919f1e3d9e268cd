"""Modules that state their own constant: their calls become one node each."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from lipkit.bound import L2, Bound, Scope
from lipkit.errors import CaptureError, MetricError, UnsupportedError
from lipkit.linops import HasOperator
from lipkit.regions import Everywhere
from lipkit.trace.complex_values import as_pairs
from lipkit.trace.exported_graph import Folded, calls, converts, gives, makes_complex
from lipkit.trace.nodes.declared import Declared, DeclaresInEveryNorm, DeclaresLipschitz, DeclaresOfComplex

Promises = dict[Node, tuple[Declared, Node]]


@final
@dataclass(frozen=True, eq=False)
class Segment:
    """The nodes of one module call as a function of its input and of the constant tensors it uses."""

    steps: tuple[Node, ...]
    source: Node
    result: Node
    same: Mapping[Node, Node]
    slots: tuple[Node, ...]
    plain: Mapping[Node, object]

    def __call__(self, z: Tensor, *parameters: Tensor) -> Tensor:
        values: dict[Node, Any] = {**self.plain, **dict(zip(self.slots, parameters, strict=True)), self.source: z}

        def value(node: Node) -> Any:
            return values[self.same.get(node, node)]

        for node in self.steps:
            assert callable(node.target)
            if converts(node):
                # The type of the example; the function is evaluated in that of z.
                values[node] = value(node.all_input_nodes[0]).to(z.dtype.to_real())
            elif makes_complex(node):
                values[node] = value(node.all_input_nodes[0]).to(z.dtype.to_complex())
            else:
                values[node] = node.target(*map_arg(node.args, value), **map_arg(node.kwargs, value))
        return values[self.result]


@final
@dataclass(frozen=True, eq=False)
class _OnPairs:
    """A module call between complex values as a function of pairs of real numbers, which have the same l2 norm."""

    fn: Segment
    takes_pairs: bool

    def __call__(self, z: Tensor, *parameters: Tensor) -> Tensor:
        return as_pairs(self.fn(torch.view_as_complex(z) if self.takes_pairs else z, *parameters))


def declaring_modules(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, DeclaresLipschitz]:
    """The modules of a model whose own constants count, by path.

    A declaration is of a map of one input. A module m(a, b) that is called as m(x, x) looks like one in the graph, and
    has another constant than it declared: a + b has 2 on the diagonal. So a module that gets one tensor in two
    arguments is read operation by operation. Equal entries on the example count as one tensor, because equal
    operations become one node. A tensor that reaches a module by another way than its arguments is not seen.

    Cost: one evaluation of the model, if any module declares.
    """
    found = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        # The operator of an affine module says more than a constant: it can be joined with its neighbours.
        if isinstance(module, DeclaresLipschitz) and not isinstance(module, HasOperator | nn.Linear)
    }
    if not found:
        return found
    watched = {id(module) for module in found.values()}
    twice: set[int] = set()

    def look(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], _: object) -> None:
        if id(module) in watched and _has_one_twice((given, named)):
            twice.add(id(module))

    # Not a hook of the modules themselves, which some layers refuse.
    handle = register_module_forward_hook(look, with_kwargs=True)
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        # A weight that cannot be computed: none is believed, and reading its operations says which it is.
        return {}
    finally:
        handle.remove()
    return {path: module for path, module in found.items() if id(module) not in twice}


def _has_one_twice(given: object) -> bool:
    """Whether two of the tensors of numbers in here have the same entries."""
    leaves = [x for x in tree_leaves(given) if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
    return any(_are_equal(a, b) for a, b in itertools.combinations(leaves, 2))


def _are_equal(a: Tensor, b: Tensor) -> bool:
    if a is b or a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return a is b
    a, b = (x if x.layout is torch.strided else x.to_dense() for x in (a, b))
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def declarations(
    modules: Mapping[str, DeclaresLipschitz], folded: Folded, target: Node, sources: Sequence[Node]
) -> tuple[Promises, frozenset[Node]]:
    """For the last node of every call of a declaring module: the declared node, where its input is; all nodes inside.

    A call counts if its nodes have one input that depends on the network's and one result; of nested ones the
    outermost counts. A call of any other form, of a module that has nothing to promise any more, or between complex
    values of a module whose promise is about real ones, is lowered operation by operation, which is sound without it.
    """
    regions: dict[str, list[Node]] = {}
    for node in folded.steps:
        for call in calls(node):
            if call.partition("@")[0] in modules:
                regions.setdefault(call, []).append(node)
    begun = {call for source in sources for call in calls(source)}
    promises: Promises = {}
    inside: set[Node] = set()
    for call in sorted(regions, key=lambda call: (call.count("."), len(call))):
        nodes = regions[call]
        if call in begun or not inside.isdisjoint(nodes):
            continue
        ends = _ends(nodes, folded, target)
        made = None if ends is None else _declare(call, modules[call.partition("@")[0]], nodes, ends, folded)
        if ends is not None and made is not None:
            promises[ends[1]] = (made, ends[0])
            inside.update(nodes)
    return promises, frozenset(inside)


def _ends(nodes: list[Node], folded: Folded, target: Node) -> tuple[Node, Node] | None:
    """The one input and the one result of a region, or None."""
    region = set(nodes)
    used = {folded.representative(arg) for node in nodes for arg in node.all_input_nodes}
    inputs = [arg for arg in used if arg not in region and arg not in folded.constants]
    outside = [step for step in folded.steps if step not in region]
    wanted = {folded.representative(arg) for step in outside for arg in step.all_input_nodes} | {
        folded.representative(target)
    }
    results = [node for node in nodes if node in wanted]
    return (inputs[0], results[0]) if len(inputs) == len(results) == 1 else None


def _declare(
    call: str, module: DeclaresLipschitz, nodes: list[Node], ends: tuple[Node, Node], folded: Folded
) -> Declared | None:
    """The call as one node; None if the module promises nothing."""
    source, result = ends
    size, shape = (tuple(node.meta["val"].shape) for node in ends)
    paired = [gives(node, Tensor.is_complex) for node in ends]
    if any(paired) and not (isinstance(module, DeclaresOfComplex) and module.covers_complex is True):
        return None
    declares: object = module.declared_lipschitz
    try:
        promise = declares(size[1:]) if callable(declares) else declares
    except (UnsupportedError, MetricError):
        return None
    if not isinstance(promise, Bound):
        raise CaptureError(
            f"The module {call or 'itself'} declares {promise!r}; `declared_lipschitz(self, in_shape)` is a method "
            'that gives a Bound: Bound.from_value(2.0, Kind.UPPER, "why it holds").'
        )
    if not promise.kind.certifies or promise.region != Everywhere() or promise.of is not Scope.WHOLE:
        raise CaptureError(
            f"The module {call or 'itself'} declares: {promise}. A declaration must be an exact or upper bound of the "
            "whole map, everywhere."
        )
    if promise.metric.p_in != promise.metric.p_out:
        raise CaptureError(
            f"The module {call or 'itself'} declares a constant in {promise.metric}; both norms must be the same."
        )
    used = [folded.representative(arg) for node in nodes for arg in node.all_input_nodes]
    constants = {node: folded.constants[node] for node in dict.fromkeys(used) if node in folded.constants}
    tensors = {node: value for node, value in constants.items() if isinstance(value, Tensor)}
    plain = {node: value for node, value in constants.items() if node not in tensors}
    fn: Callable[..., Tensor] = Segment(tuple(nodes), source, result, dict(folded.same), tuple(tensors), plain)
    if any(paired):
        if promise.metric != L2:
            # Between other norms pairs of real numbers have another constant than complex ones.
            return None
        fn = _OnPairs(fn, paired[0])
        size, shape = ((*axes, 2) if pair else axes for axes, pair in zip((size, shape), paired, strict=True))
    always = isinstance(module, DeclaresInEveryNorm) and module.every_norm
    if not isinstance(always, bool):
        raise CaptureError(
            f"every_norm of the module {call or 'itself'} must be True or False, got {type(always).__name__}; write it "
            "as an attribute or a property."
        )
    return _refuse_nan(Declared(fn, size, shape, tuple(tensors.values()), promise, call, always))


def _refuse_nan(node: Declared) -> Declared:
    """Refuse a module whose weights make it compute NaN: its declaration is believed and looks at no weight."""
    broken = [t for t in node.parameters if t.is_floating_point() and bool(torch.isnan(t.detach()).any())]
    if broken:
        with torch.no_grad():
            zero = torch.zeros((1, *node.shape), dtype=torch.float64, device=broken[0].device)
            # Memory that is written before it is read may hold anything.
            seen = bool(torch.isnan(node(zero)).any())
        if seen:
            raise CaptureError(
                f"The module {node.path or 'itself'} declares a constant and computes NaN, because a parameter or a "
                "weight that it computes is NaN; repair its parameters, or load an earlier checkpoint."
            )
    return node
