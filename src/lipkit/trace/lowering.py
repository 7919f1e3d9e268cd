"""From the operations of a graph to the rows of a network, by the rules of `trace.rules`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from lipkit.errors import CaptureError, LipkitError
from lipkit.linops import Shape
from lipkit.trace.complex_rules import COMPLEX_RULES, lower_complex
from lipkit.trace.complex_values import Paired
from lipkit.trace.export_failures import first_line
from lipkit.trace.exported_graph import (
    Folded,
    gives,
    is_batch_statistic,
    is_control_flow,
    is_item,
    is_random,
    is_sparse,
    module_path,
    source_line,
)
from lipkit.trace.missing_rules import Gap, Verdict, refusal_of
from lipkit.trace.network import Builder, Network, Origin, Ref
from lipkit.trace.nodes.declared import Declared
from lipkit.trace.rules import RULES, Refusal
from lipkit.trace.rules._registry import DISCONTINUOUS
from lipkit.trace.rules.products.choices import MASKS

_REAL = "return its real and imaginary parts (torch.view_as_real), or its absolute values"
_REPORT = "report this model; until then replace the layer, or declare a constant (`declared_lipschitz`)"
_DECLARE = "declare a constant on the module (`declared_lipschitz`), replace the layer, or register a rule (`lowers`)"


@final
class Lowering:
    """Rows for the steps of a folded graph; what cannot be lowered is collected, and `finish` raises it all."""

    def __init__(self, folded: Folded, builder: Builder, known: Mapping[Node, Ref]) -> None:
        self._folded = folded
        self._builder = builder
        self._values: dict[Node, Any] = {**folded.constants, **known}
        self._gaps: list[Gap] = []

    def run(self, promises: Mapping[Node, tuple[Declared, Node]], inside: frozenset[Node]) -> None:
        """All steps in order; the last node of a declared module becomes one node, the others `inside` are skipped."""
        for node in self._folded.steps:
            self._builder.origin = origin_of(node)
            self._builder.dtype = _precision(node)
            if node in promises:
                self._values[node] = self._promised(node, *promises[node])
            elif node not in inside:
                self._values[node] = self._lower(node)

    def _promised(self, node: Node, declared: Declared, source: Node) -> object:
        value = self._value(source)
        found = self._builder.node(declared, value.parts if isinstance(value, Paired) else value)
        return Paired(found) if gives(node, Tensor.is_complex) else found

    def _lower(self, node: Node) -> object:
        if is_item(node):
            return self._item(node)
        # Said once, where sparse values begin.
        found = _refs_to_nothing(node) if _refused_before(node, self._folded) else self._try_rules(node)
        if not isinstance(found, Gap) and _is_discrete(node.meta.get("val")) and node.target not in MASKS:
            why = "computes with whole numbers or truth values that depend on the input"
            remedy = "turn a mask into a float first (mask.to(x.dtype)), or use torch.where"
            found = Gap(origin_of(node), Verdict.REFUSED, why, remedy)
        if isinstance(found, Gap):
            self._gaps.append(found)
            return _refs_to_nothing(node)
        self._check(node, found)
        return found

    def _try_rules(self, node: Node) -> object:
        gap = self._hopeless(node)
        if gap is not None:
            return gap
        refusals: list[Refusal] = []
        for rule in self._rules(node):
            try:
                return rule(*map_arg(node.args, self._dense), **map_arg(node.kwargs, self._dense))
            except Refusal as error:
                refusals.append(error)
            except LipkitError as error:
                refusals.append(Refusal(str(error), _DECLARE))
            except Exception as error:  # noqa: BLE001 - a defect of a rule is a refusal too, with what it says
                refusals.append(Refusal(f"its rule failed, {type(error).__name__}: {first_line(error)}", _REPORT))
        reasons, remedies = (dict.fromkeys(r.reason for r in refusals), dict.fromkeys(r.remedy for r in refusals))
        return Gap(origin_of(node), Verdict.REFUSED, "; ".join(reasons), "; ".join(remedies))

    def _rules(self, node: Node) -> list[Callable[..., object]]:
        """The rules that may lower a node, in the order in which they are tried."""
        assert isinstance(node.target, OpOverload)
        if not _meets_complex(node, self._folded):
            return [partial(rule.lower, self._builder) for rule in RULES[node.target]]
        op, like = node.target, node.meta["val"]
        return [lambda *args, **kwargs: lower_complex(self._builder, op, args, kwargs, like)]

    def _hopeless(self, node: Node) -> Gap | None:
        origin = origin_of(node)
        if is_random(node):
            off = "switch it off for evaluation: nn.Dropout instead of F.dropout, or training=self.training"
            return Gap(origin, Verdict.RANDOM, "draws random numbers, so there is no one function", off)
        if is_control_flow(node) or node.op == "get_attr":
            why = "a choice between functions is Lipschitz only if they agree where it switches"
            return Gap(origin, Verdict.BRANCH, why, "use torch.where on continuous branches, or capture one branch")
        if is_batch_statistic(node):
            why = "normalises by the statistics of the batch, so samples are mixed"
            return Gap(origin, Verdict.BATCH, why, "track running statistics and evaluate with them")
        if gives(node, is_sparse):
            why = "gives a sparse tensor that depends on the input"
            return Gap(origin, Verdict.REFUSED, why, "compute with dense tensors; sparse weights may stay as they are")
        if "functorch" in getattr(node.target, "__module__", ""):
            return Gap(origin, Verdict.UNKNOWN, "uses torch.func (vmap)", "write the batch axis instead")
        if not isinstance(node.target, OpOverload) or node.target is torch.ops.aten.item.default:
            why = "computes with a number that was read from a tensor"
            return Gap(origin, Verdict.UNKNOWN, why, "leave out .item(), so that it stays a tensor")
        if node.target in DISCONTINUOUS:
            why = DISCONTINUOUS[node.target]
            return Gap(origin, Verdict.REFUSED, why, "replace the layer, or compute it from something constant")
        if node.target not in RULES and not _meets_complex(node, self._folded):
            return Gap(origin, Verdict.UNKNOWN, _hint(node), _DECLARE)
        if not _has_fixed_shapes(node):
            why = "the shape of its result depends on values"
            return Gap(
                origin, Verdict.REFUSED, why, "give it a fixed shape (torch.where, a mask), or replace the layer"
            )
        return None

    def _item(self, node: Node) -> object:
        results: Any = self._values[self._folded.representative(_only(node.all_input_nodes))]
        chosen = results[node.args[1]]
        if chosen is None:
            source = origin_of(node.all_input_nodes[0])
            why = f"its result number {node.args[1]} (a position, not a value) jumps, so it has no constant"
            self._gaps.append(Gap(source, Verdict.REFUSED, why, "use the values only, or replace the layer"))
            return _refs_to_nothing(node)
        return chosen

    def _value(self, node: Node) -> Any:
        return self._values[self._folded.representative(node)]

    def _dense(self, node: Node) -> Any:
        """The value of a node, a sparse constant as a dense one."""
        value = self._value(node)
        return value.to_dense() if isinstance(value, Tensor) and is_sparse(value) else value

    def _check(self, node: Node, found: object) -> None:
        """The rows must have the shapes that torch found; anything else is a defect of a rule."""
        expected = node.meta["val"]
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for ref, value in pairs:
            if isinstance(ref, Ref | Paired) and ref.shape != tuple(value.shape):
                raise CaptureError(f"The rule of {node.target} gives shape {ref.shape}, torch {tuple(value.shape)}.")

    def finish(self, result: Node) -> Network:
        """The network that computes `result`, without its batch axis; a single number has one axis of length one."""
        value = self._values.get(self._folded.representative(result))
        like = result.meta["val"]
        if not like.is_floating_point():
            remedy = _REAL if like.is_complex() else "choose a real output"
            self._gaps.append(Gap(origin_of(result), Verdict.REFUSED, f"the output is {like.dtype}", remedy))
        if self._gaps:
            raise refusal_of(self._gaps)
        ref = self._builder.constant(value) if isinstance(value, Tensor) else value
        assert isinstance(ref, Ref)
        shape = ref.shape[1:] if ref.shape[:1] == (1,) else ref.shape
        return _without_nan(self._builder.finish(ref, shape or (1,)))


def without_rule(folded: Folded, inside: frozenset[Node]) -> set[OpOverload]:
    """The operations that no rule speaks of, of the steps outside of declared modules."""
    steps = (
        node
        for node in folded.steps
        if not (node in inside or is_random(node) or is_batch_statistic(node) or _refused_before(node, folded))
        and not gives(node, is_sparse)
    )
    ops = {(node.target, _meets_complex(node, folded)) for node in steps if isinstance(node.target, OpOverload)}
    return {
        op for op, meets in ops if op not in DISCONTINUOUS and (op not in COMPLEX_RULES if meets else op not in RULES)
    }


def _refused_before(node: Node, folded: Folded) -> bool:
    """Whether a node takes a sparse value that depends on the input, which no rule speaks of."""
    return any(gives(arg, is_sparse) for arg in _moving(node, folded))


def _meets_complex(node: Node, folded: Folded) -> bool:
    """Whether a node takes or gives a complex value that depends on the input."""
    return any(gives(end, Tensor.is_complex) for end in (node, *_moving(node, folded)))


def _moving(node: Node, folded: Folded) -> list[Node]:
    """The arguments of a node that depend on the input."""
    return [arg for arg in node.all_input_nodes if folded.representative(arg) not in folded.constants]


def _without_nan(network: Network) -> Network:
    """Zero for NaN in constants that are never read (memory that is overwritten later); refuse those that are."""
    unknown = {
        k: torch.isnan(bias) for k, bias in network.biases.items() if bool(torch.isnan(_stored_entries(bias)).any())
    }
    if not unknown:
        return network
    with torch.no_grad():
        zero = torch.zeros((1, *network.source), dtype=torch.float64, device=next(iter(unknown.values())).device)
        seen = bool(torch.isnan(network(zero)).any())
    if seen:
        places = "; ".join(str(network.origin(k)) for k in unknown)
        raise CaptureError(
            f"{places}: a constant of the model is NaN. Repair its weights, or write every entry of a tensor made by "
            "torch.empty before it is read."
        )
    repaired = {k: torch.where(mask, 0.0, network.biases[k]) for k, mask in unknown.items()}
    return replace(network, biases={**network.biases, **repaired})


def _stored_entries(bias: Tensor) -> Tensor:
    """Every entry once: a broadcast axis is read at its first position only."""
    return bias[tuple(slice(0, 1) if step == 0 else slice(None) for step in bias.stride())]


def origin_of(node: Node) -> Origin:
    """Where a node comes from."""
    plain = isinstance(node.target, OpOverload | str)
    name = str(node.target).removeprefix("aten.") if plain else getattr(node.target, "__name__", str(node.target))
    return Origin(name.removesuffix(".default"), module_path(node), source_line(node))


def _precision(node: Node) -> torch.dtype:
    """The floating-point type of a node's first result, or of what it compares; float64 if there is none."""
    for end in (node, *(node.all_input_nodes if node.target in MASKS else ())):
        like = end.meta.get("val")
        first = like[0] if isinstance(like, tuple | list) and like else like
        if isinstance(first, Tensor) and (first.is_floating_point() or first.is_complex()):
            return first.dtype.to_real()
    return torch.float64


def _is_discrete(value: object) -> bool:
    return isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())


def _has_fixed_shapes(node: Node) -> bool:
    """Whether the shapes of all tensors at a node, those of its arguments and of its results, are numbers."""
    ends = pytree.tree_leaves([end.meta.get("val") for end in (*node.all_input_nodes, node)])
    return all(isinstance(size, int) for end in ends if isinstance(end, Tensor) for size in end.shape)


def _refs_to_nothing(node: Node) -> object:
    """References to nothing, so that the operations behind a gap are still tried and their own gaps found."""
    like = node.meta.get("val")
    return tuple(map(_nothing, like)) if isinstance(like, tuple | list) else _nothing(like)


def _nothing(like: object) -> Ref | Paired:
    paired = isinstance(like, Tensor) and like.is_complex()
    return Paired(Ref(-1, (*_shape(like), 2))) if paired else Ref(-1, _shape(like))


def _shape(value: object) -> Shape:
    """The shape of a tensor; empty for anything else, and if it is not made of numbers."""
    shape = tuple(value.shape) if isinstance(value, Tensor) else ()
    return shape if all(isinstance(size, int) for size in shape) else ()


def _hint(node: Node) -> str:
    assert isinstance(node.target, OpOverload)
    if torch.Tag.pointwise in node.target.tags:
        return "acts entry by entry, but its slopes are not known"
    return "the operation is not known"


def _only(nodes: Sequence[Node]) -> Node:
    (node,) = nodes
    return node
