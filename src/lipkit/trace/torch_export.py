"""torch's export as a graph of public operations: every private or shifting name of torch is in this file.

For torch 2.11 and later: exports (not strict, static shapes) without decompositions keep composites such as `linear`.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from lipkit._runtime import reading
from lipkit.errors import CaptureError
from lipkit.trace.quiet_export import unlogged

aten = torch.ops.aten

# Side effects that only check; they compute nothing.
_CHECKS = frozenset(
    {
        aten._assert_tensor_metadata.default,
        aten._assert_async.msg,
        aten._assert_scalar.default,
        aten.sym_constrain_range_for_size.default,
    }
)
# The same operation under the name that rules use.
_RENAMED = {
    aten._unsafe_view.default: aten.view.default,
    aten._reshape_alias.default: aten.view.default,
    aten._to_copy.default: aten.to.dtype_layout,
    aten.lift_fresh.default: aten.alias.default,
    aten.lift_fresh_copy.default: aten.clone.default,
    aten._adaptive_avg_pool2d.default: aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default: aten.adaptive_avg_pool3d.default,
    aten._unsafe_index.Tensor: aten.index.Tensor,
    # In place only as far as derivatives go; torch writes it after every constant that a model makes on the way.
    aten.detach_.default: aten.detach.default,
}
# Batch statistics, which mix the samples of a batch.
_BATCH_STATISTICS = frozenset(
    {aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats, aten.native_batch_norm.default}
)
# The kernel of an operation that is defined by simpler ones.
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# What the switches of training are called in schemas.
_TRAINING = ("train", "training", "use_input_stats")
# Operations that are random only if an argument is on.
_OFF = {"dropout_p": 0.0, "train": False, "training": False}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; the mode of every submodule is put back, also after an error."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The model on these arguments as a graph over its live tensors; refuses what torch.export cannot trace."""
    try:
        with warnings.catch_warnings(), unlogged(), reading():
            warnings.simplefilter("ignore")
            return torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        raise CaptureError(
            f"torch.export cannot trace {type(model).__name__} on inputs of shape {_shapes(args, kwargs)}: "
            f"{_first_line(error)} Branches on values, .item() and data-dependent shapes have no graph: replace them "
            "(torch.where, a fixed shape), or trace the part of the model before or after them."
        ) from error


def functional(program: ExportedProgram) -> ExportedProgram:
    """The same program without in-place operations; composite operations are kept.

    A program that changes nothing is returned as it is, which saves a second trace.
    """
    return _decomposed(program, {}) if any(_may_change(node) for node in program.graph.nodes) else program


def split_up(program: ExportedProgram, ops: Collection[OpOverload]) -> ExportedProgram:
    """The same program with these operations written out in simpler ones, by torch's own definitions."""
    return _decomposed(program, {op: _definition(op) for op in ops})


def _definition(op: OpOverload) -> Callable[..., Any]:
    """The simpler operations behind one: written in Python, or in C++."""
    if not _has_kernel(op):
        # Asked by index: this table answers None to `get`, whatever it contains.
        return torch.export.default_decompositions()[op]
    # `op.decompose` would call itself: `run_decompositions` exchanges the kernel it goes through.
    kernel = op.py_kernels.get(_COMPOSITE)
    return kernel if callable(kernel) else partial(op._op_dk, _COMPOSITE)


def _has_kernel(op: OpOverload) -> bool:
    """Whether an operation has a kernel made of simpler ones; to call one that is absent ends the process."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), _COMPOSITE)


def is_composite(op: OpOverload) -> bool:
    """Whether torch defines an operation by simpler ones; one that leaves the graph (`item`) is none."""
    tensors = all("Tensor" in str(result.type) for result in op._schema.returns)
    return tensors and (_has_kernel(op) or op in torch.export.default_decompositions())


def _decomposed(program: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions(table)


def _may_change(node: Node) -> bool:
    """Whether a node changes a tensor in place, or holds a graph of its own that may."""
    if isinstance(node.target, HigherOrderOperator):
        return True
    if not isinstance(node.target, OpOverload) or node.target is aten.detach_.default:
        return False
    # Training switches update running statistics, which schemas do not tell.
    return node.target._schema.is_mutable or any(_given(node, name) is True for name in _TRAINING)


def _given(node: Node, name: str) -> object:
    """The argument of this name, or its default; None if the operation has none."""
    assert isinstance(node.target, OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            default = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, default)
    return None


def canonical(program: ExportedProgram) -> Graph:
    """The graph over public operations: renamed, without checks, and nothing in it mutates anything."""
    graph = Graph()
    copied: dict[Node, Node] = {}
    graph.output(graph.graph_copy(program.graph, copied))
    for node in list(graph.nodes):
        if node.op == "call_function":
            _rewrite(graph, node)
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            raise CaptureError(
                f"{node.target} at {module_path(node) or 'the model'} changes its argument in place and was not made "
                "functional by torch.export; write it without the trailing underscore."
            )
    return graph


def _rewrite(graph: Graph, node: Node) -> None:
    op: Any = node.target
    if op in _CHECKS:
        graph.erase_node(node)
    elif op in _RENAMED:
        node.target = _RENAMED[op]
    elif op is aten.copy.default:
        # The destination gives the shape and the dtype, nothing else; `copy` itself has no derivative.
        like = node.meta["val"]
        with graph.inserting_before(node):
            spread = graph.call_function(aten.expand.default, (node.args[1], list(like.shape)))
            cast = graph.call_function(aten.to.dtype_layout, (spread,), {"dtype": like.dtype})
        spread.meta = {**node.meta, "val": like.new_empty(like.shape, dtype=_value_of(node.args[1]).dtype)}
        cast.meta = dict(node.meta)
        node.replace_all_uses_with(cast)
        graph.erase_node(node)
    elif op is aten._native_batch_norm_legit_no_training.default:
        x, weight, bias, mean, variance, momentum, eps = node.args
        with graph.inserting_before(node):
            whole = graph.call_function(
                aten.batch_norm.default, (x, weight, bias, mean, variance, False, momentum, eps, False)
            )
        whole.meta = {**node.meta, "val": node.meta["val"][0]}
        # The other two results are the statistics of a batch that is not being measured: empty.
        for user in list(node.users):
            if user.args[1] == 0:
                user.replace_all_uses_with(whole)
                graph.erase_node(user)
        if not node.users:
            graph.erase_node(node)


def _value_of(node: object) -> Tensor:
    assert isinstance(node, Node)
    return node.meta["val"]


def refuse_mutation(program: ExportedProgram) -> None:
    """Refuse a model that changes its own state while it is evaluated: its function would change between calls."""
    changed: list[str] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION):
            continue
        # A count of batches is never read by the forward pass; torch has listed it as changed in evaluation mode.
        if not str(spec.target).endswith("num_batches_tracked"):
            changed.append(f"{spec.target} ({spec.kind.name.lower().replace('_', ' ')})")
    if changed:
        raise CaptureError(
            f"The model changes its own state in evaluation mode: {', '.join(sorted(set(changed)))}. It may be another "
            "function at the next call; pass training=False where it is set by hand, or move the update out of forward."
        )


def live_nodes(program: ExportedProgram, graph: Graph) -> dict[Node, object]:
    """The model's own tensors by their placeholders in the graph."""
    nodes = {node.target: node for node in graph.nodes if node.op == "placeholder"}
    found: dict[Node, object] = {}
    for spec in program.graph_signature.input_specs:
        node = nodes[spec.arg.name]
        match spec.kind:
            case InputKind.PARAMETER | InputKind.BUFFER | InputKind.CONSTANT_TENSOR:
                known: Mapping[str, object] = program.state_dict
                found[node] = known[spec.target] if spec.target in known else program.constants[str(spec.target)]
            case InputKind.CUSTOM_OBJ:
                found[node] = program.constants[str(spec.target)]
            case _:
                pass
    return found


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
    return not names or any(_given(node, name) != _OFF[name] for name in names)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    leaves = pytree.tree_leaves((args, kwargs))
    return ", ".join(str(tuple(t.shape)) for t in leaves if isinstance(t, Tensor)) or "()"


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith(".") else f"{text}."
