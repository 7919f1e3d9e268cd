"""The graph that torch exports: questions about its nodes, and which of them are constants."""

import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from lipkit.errors import CaptureError

aten = torch.ops.aten

# Batch statistics, which mix the samples of a batch.
_BATCH_STATISTICS = frozenset(
    {aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats, aten.native_batch_norm.default}
)
# Operations that change the type of numbers in a graph of `torch_export.canonical_graph`.
_CONVERSIONS = frozenset({aten.to.dtype, aten.to.dtype_layout, aten.to.device, aten.to.other, aten.type_as.default})
# Operations that are random only if an argument is on.
_OFF = {"dropout_p": 0.0, "train": False, "training": False}


def user_inputs(program: ExportedProgram) -> list[str]:
    """The placeholders of the arguments, in the order in which (args, kwargs) flatten."""
    return [s.arg.name for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]


def user_outputs(program: ExportedProgram) -> list[int]:
    """The positions, among the graph's results, of what the model returns, in order."""
    specs = program.graph_signature.output_specs
    return [i for i, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT]


def calls(node: Node) -> tuple[str, ...]:
    """The module calls around a node, outermost first, as paths; the second call of a module `l` is `l@1`."""
    found: list[str] = []
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        again = key.partition("@")[2]
        found.append(str(path).partition("@")[0] + (f"@{again}" if again else ""))
    return tuple(found)


def module_path(node: Node) -> str:
    """The path of the innermost module that runs a node."""
    return (calls(node) or ("",))[-1]


def source_line(node: Node) -> str:
    """File and line of the user's code behind a node: the innermost frame outside of torch, if there is one."""
    # Code that was generated (by torch.fx) is in no file, and has another name in every copy of a module.
    frames: Sequence[tuple[str, str]] = re.findall(r'File "([^"<]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if "/torch/" not in frame[0]]
    return f"{own[-1][0].rsplit('/', 1)[-1]}:{own[-1][1]}" if own else ""


def is_control_flow(node: Node) -> bool:
    """Whether a node chooses between graphs or repeats one."""
    return isinstance(node.target, HigherOrderOperator)


def is_batch_statistic(node: Node) -> bool:
    """Whether a node normalises by the statistics of the batch."""
    return node.target in _BATCH_STATISTICS


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers; dropout that is off does not."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    names = [argument.name for argument in op._schema.arguments if argument.name in _OFF]
    return not names or any(argument_of(node, name) != _OFF[name] for name in names)


def gives(node: Node, test: Callable[[Tensor], bool]) -> bool:
    """Whether a result of a node is a tensor with some property."""
    return any(test(leaf) for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor))


def is_sparse(value: Tensor) -> bool:
    """Whether a tensor keeps some of its entries only."""
    return value.layout is not torch.strided


def converts(node: Node) -> bool:
    """Whether a node only changes the type of floating-point numbers."""
    if node.target not in _CONVERSIONS:
        return False
    source, target = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    return all(isinstance(end, Tensor) and end.dtype.is_floating_point for end in (source, target))


def makes_complex(node: Node) -> bool:
    """Whether a node changes numbers to complex ones, or their type."""
    if node.target not in _CONVERSIONS:
        return False
    target = node.meta.get("val")
    return isinstance(target, Tensor) and target.dtype.is_complex


def keeps_all(node: Node) -> bool:
    """Whether a node converts numbers to the type and the device that they have already."""
    if not converts(node):
        return False
    source, target = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return source.dtype == target.dtype and source.device == target.device


def argument_of(node: Node, name: str) -> object:
    """The argument of this name, or its default; None if the operation has none."""
    assert isinstance(node.target, OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            default = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, default)
    return None


# Operations that read the shape, the dtype or the device of their first argument, and never its entries.
SHAPE_ONLY = frozenset(
    {
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.full_like.default,
        aten.empty_like.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.new_full.default,
        aten.new_empty.default,
        aten.sym_size.int,
    }
)
# Those that read them of their second argument.
_LIKE_SECOND = frozenset(
    {
        aten.type_as.default,
        aten.to.other,
        aten.expand_as.default,
        aten.view_as.default,
        aten.reshape_as.default,
    }
)
# Memory that nobody has written yet: NaN, so that reading it is noticed.
_UNWRITTEN = frozenset({aten.empty_like.default, aten.new_empty.default, aten.empty.memory_format})


@final
@dataclass(frozen=True, eq=False)
class Folded:
    """A graph after partial evaluation.

    `steps` are the nodes that depend on the input, in order and without duplicates; `constants` the values of those
    that do not and are needed; `same` maps a duplicate to the node that is kept.
    """

    steps: tuple[Node, ...]
    constants: Mapping[Node, object]
    same: Mapping[Node, Node]

    def representative(self, node: Node) -> Node:
        """The node that stands for this one."""
        return self.same.get(node, node)


def fold(graph: Graph, sources: Iterable[Node], known: Mapping[Node, object], result: Node) -> Folded:
    """Evaluate what `result` needs and `sources` do not influence, in the ambient grad mode, on the tensors in `known`.

    A weight that is a graph of parameters becomes a live tensor. Equal operations on equal arguments are done once,
    so a parametrized layer that is called twice has one weight.
    """
    given = frozenset(sources)
    needed = _ancestors(result, given)
    moving: set[Node] = set(given)
    values: dict[Node, object] = {}
    same: dict[Node, Node] = {}
    seen: dict[Hashable, Node] = {}
    steps: list[Node] = []
    for node in graph.nodes:
        if node not in needed or node in given:
            continue
        if node.op == "placeholder":
            values[node] = known[node]
            continue
        if keeps_all(node):
            # torch hands on the tensor itself, so what is outside of a module uses a node of its inside.
            source = node.all_input_nodes[0]
            kept = same.get(source)
            same[node] = source if kept is None else kept
            continue
        key = _key(node, same)
        if key in seen:
            same[node] = seen[key]
            continue
        seen[key] = node
        depends = any(same.get(arg, arg) in moving for arg in _read(node))
        if depends:
            moving.add(node)
            steps.append(node)
        elif node.op == "call_function" and not is_control_flow(node) and not is_random(node):
            values[node] = _evaluate(node, values, same)
        else:
            # A branch on constants, a random constant or a subgraph: refused where it is lowered.
            moving.add(node)
            steps.append(node)
    return Folded(tuple(steps), values, same)


def _evaluate(node: Node, values: Mapping[Node, object], same: Mapping[Node, Node]) -> object:
    def value(arg: Node) -> Any:
        kept = same.get(arg, arg)
        if kept in values:
            return values[kept]
        like = arg.meta["val"]
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)

    assert callable(node.target)
    try:
        found = node.target(*map_arg(node.args, value), **map_arg(node.kwargs, value))
    except torch.linalg.LinAlgError as error:  # pyright: ignore[reportPrivateImportUsage]
        why = str(error).partition("\n")[0]
        raise CaptureError(
            f"{module_path(node) or 'The model'}: a weight that is computed from parameters has none, {why} Check the "
            "parameters for NaN and infinite numbers, and load an earlier checkpoint if there are any."
        ) from error
    if node.target in _UNWRITTEN and isinstance(found, Tensor) and found.is_floating_point():
        return found.fill_(torch.nan)
    return found


def _read(node: Node) -> list[Node]:
    """The arguments whose entries matter."""
    if node.target in SHAPE_ONLY:
        return [arg for arg in node.all_input_nodes if arg is not node.args[0]]
    return node.all_input_nodes[:1] if node.target in _LIKE_SECOND else node.all_input_nodes


def _ancestors(result: Node, given: frozenset[Node]) -> set[Node]:
    found, todo = {result}, [result]
    while todo:
        node = todo.pop()
        if node in given:
            continue
        fresh = [arg for arg in node.all_input_nodes if arg not in found]
        found.update(fresh)
        todo += fresh
    return found


def _key(node: Node, same: Mapping[Node, Node]) -> Hashable:
    if node.op != "call_function":
        return node

    def frozen(value: object) -> Hashable:
        if isinstance(value, Node):
            return same.get(value, value)
        if isinstance(value, list | tuple):
            return (type(value) is tuple, *map(frozen, value))
        if isinstance(value, dict):
            return tuple((k, frozen(v)) for k, v in sorted(value.items()))
        # 1, 1.0 and True are equal but not the same argument.
        return type(value), str(value) if isinstance(value, slice) else value  # pyright: ignore[reportReturnType]

    return node.target, frozen(node.args), frozen(dict(node.kwargs))


def is_item(node: Node) -> bool:
    """Whether a node takes one of several results."""
    return node.target is operator.getitem
