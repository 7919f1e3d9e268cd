"""torch's export as a graph of public operations; private or shifting names of torch are here and in `exported_graph`.

For torch 2.11 and later: exports (not strict, static shapes) without decompositions keep composites such as `linear`.
"""

import io
import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node

from lipkit._runtime import reading
from lipkit.errors import CaptureError
from lipkit.trace.export_failures import explain_failure, first_line
from lipkit.trace.exported_graph import argument_of, module_path

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
    aten._to_copy.default: aten.to.dtype_layout,
    aten.lift_fresh.default: aten.alias.default,
    aten.lift_fresh_copy.default: aten.clone.default,
    aten._adaptive_avg_pool2d.default: aten.adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default: aten.adaptive_avg_pool3d.default,
    aten._unsafe_index.Tensor: aten.index.Tensor,
    # Products with a sparse constant, which rules see as a dense one.
    aten._sparse_mm.default: aten.mm.default,
    aten._sparse_addmm.default: aten.addmm.default,
    # In place only as far as derivatives go; torch writes it after every constant that a model makes on the way.
    aten.detach_.default: aten.detach.default,
}
# The kernel of an operation that is defined by simpler ones.
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# The names of the switches of training in schemas.
_TRAINING = ("train", "training", "use_input_stats")


def export_model(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The model on these arguments as a graph over its live tensors; refuses what torch.export cannot trace."""
    try:
        with warnings.catch_warnings(), without_logs(), reading():
            warnings.simplefilter("ignore")
            return torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        raise explain_failure(model, args, kwargs, error) from error


def make_functional(program: ExportedProgram) -> ExportedProgram:
    """The same program without in-place operations; composite operations are kept.

    A program that changes nothing is returned as it is, which saves a second trace.
    """
    return _decompose(program, {}) if any(_may_change(node) for node in program.graph.nodes) else program


def split_up(program: ExportedProgram, ops: Collection[OpOverload]) -> ExportedProgram:
    """The same program with these operations written out in simpler ones, by torch's own definitions."""
    return _decompose(program, {op: _definition(op) for op in ops})


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


def _decompose(program: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return program.run_decompositions(table)
    except Exception as error:
        ops = ", ".join(sorted(map(str, table))) or "the operations that work in place"
        why = f"torch cannot write {ops} in simpler operations: {first_line(error)}"
        raise CaptureError(f"{why} Replace the layer, or declare its constant (`declared_lipschitz`).") from error


def _may_change(node: Node) -> bool:
    """Whether a node changes a tensor in place, or holds a graph of its own that may."""
    if isinstance(node.target, HigherOrderOperator):
        return True
    if not isinstance(node.target, OpOverload) or node.target is aten.detach_.default:
        return False
    # Training switches update running statistics, which schemas do not tell.
    return node.target._schema.is_mutable or any(argument_of(node, name) is True for name in _TRAINING)


def canonical_graph(program: ExportedProgram) -> Graph:
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
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION, OutputKind.TOKEN):
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


@contextmanager
def without_logs() -> Iterator[None]:
    """Hold back what torch logs and prints on the way, so that a failure is one sentence and not the last of many.

    Without a failure, what was printed (by the model, then) is printed after all.
    """
    names = ["torch", *(name for name in logging.root.manager.loggerDict if name.startswith("torch."))]
    handlers = {id(handler): handler for name in names for handler in logging.getLogger(name).handlers}.values()
    printed = io.StringIO()
    try:
        for handler in handlers:
            handler.addFilter(_nothing)
        with redirect_stderr(printed):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)
    sys.stderr.write(printed.getvalue())


def _nothing(record: logging.LogRecord) -> bool:
    del record
    return False
