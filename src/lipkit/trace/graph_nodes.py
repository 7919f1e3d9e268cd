"""Questions about the nodes of an exported graph: where they come from, and what they do."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

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


def converts(node: Node) -> bool:
    """Whether a node only changes the type of floating-point numbers."""
    if node.target not in _CONVERSIONS:
        return False
    source, target = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    return all(isinstance(end, Tensor) and end.dtype.is_floating_point for end in (source, target))


def argument_of(node: Node, name: str) -> object:
    """The argument of this name, or its default; None if the operation has none."""
    assert isinstance(node.target, OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            default = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, default)
    return None
