"""The arguments and results of a model by name, and which of them the network is a function of."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from lipkit.errors import ArgumentError, CaptureError
from lipkit.linops import Shape, select
from lipkit.trace.exported_graph import calls, user_inputs, user_outputs
from lipkit.trace.network import Builder, Ref

_EMBEDDINGS = (torch.ops.aten.embedding.default, torch.ops.aten.embedding_bag.padding_idx)


@final
@dataclass(frozen=True, eq=False)
class Argument:
    """One leaf of the arguments: its full name (`xs[0]`), the parameter it belongs to (`xs`), its node, its value."""

    name: str
    parameter: str
    node: Node
    value: object

    @property
    def is_real(self) -> bool:
        """Whether it is a floating-point tensor, so that a distance between two of its values makes sense."""
        return isinstance(self.value, Tensor) and self.value.is_floating_point()


def first_samples(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """(args, kwargs) with one sample: the leading axis of every tensor that has the batch size is cut.

    The batch size is the leading axis of the first tensor that has axes. A tensor with another one is left as it is.
    """
    tensors = [t for t in pytree.tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor) and t.ndim]
    if not tensors:
        raise ArgumentError(
            "The example needs a tensor with a batch axis, got no tensor with axes; give one, e.g. torch.zeros(1, 8) "
            "for a model of 8 features, or x[None] for a single sample x."
        )
    size = tensors[0].shape[0]
    if size < 1:
        raise ArgumentError(f"The example needs at least one sample along axis 0, got shape {tuple(tensors[0].shape)}.")

    def cut(leaf: object) -> object:
        return leaf[:1] if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == size else leaf

    return pytree.tree_map(cut, (args, dict(kwargs)))


def arguments(
    program: ExportedProgram, graph: Graph, model: nn.Module | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Argument]:
    """Every leaf of the arguments, in the order of the graph."""
    placeholders = user_inputs(program)
    nodes = {str(node.target): node for node in graph.nodes if node.op == "placeholder"}
    spec = program.call_spec.in_spec
    assert spec is not None
    shape: Any = pytree.tree_unflatten(list(range(len(placeholders))), spec)
    # torch may reorder keyword arguments; the values follow.
    leaves = pytree.tree_leaves((args, {key: kwargs[key] for key in shape[1]}))
    parameters = _parameters(model)
    found: list[Argument] = []
    paths: list[tuple[Any, Any]] = pytree.tree_flatten_with_path(shape)[0]
    for path, at in paths:
        top = path[1]
        if isinstance(top, pytree.MappingKey):
            parameter = str(top.key)
        elif top.idx < len(parameters):
            parameter = parameters[top.idx]
        else:
            parameter = placeholders[at]
        name = parameter + pytree.keystr(path[2:])
        found.append(Argument(name, parameter, nodes[placeholders[at]], leaves[at]))
    return found


def _parameters(model: nn.Module | None) -> list[str]:
    if model is None:
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in positional]


def choose_inputs(graph: Graph, given: Sequence[Argument], wrt: str | tuple[str, ...] | None) -> list[Node]:
    """The nodes whose values are the input, in order."""
    if not isinstance(wrt, str | tuple | list | None):
        raise ArgumentError(f"wrt must be a name or a tuple of names, got {wrt!r}.")
    if wrt is None:
        found = [argument.node for argument in given if argument.is_real]
        if not found:
            raise CaptureError(_no_distance(graph, given, "The model has no floating-point input"))
        return found
    nodes: list[Node] = []
    for name in (wrt,) if isinstance(wrt, str) else wrt:
        nodes += _inputs_called(graph, given, name)
    if len(set(nodes)) != len(nodes) or not nodes:
        raise CaptureError(f"wrt={wrt!r} must name every input once.")
    return nodes


def _inputs_called(graph: Graph, given: Sequence[Argument], name: str) -> list[Node]:
    arguments = _with_name(given, name)
    if arguments:
        real = [a.node for a in arguments if a.is_real]
        if not real:
            raise CaptureError(_no_distance(graph, arguments, f"The input {name!r} is not a floating-point tensor"))
        return real
    # `a@0` is the first call of a module that is called several times.
    call = name.removesuffix("@0")
    region = {node for node in graph.nodes if call in calls(node)}
    if not region:
        inputs = ", ".join(sorted({a.parameter for a in given}))
        raise CaptureError(
            f"wrt={name!r} is neither an input of the model (those are: {inputs}) nor the path of a module that runs "
            f"an operation; see model.named_modules() for the paths, e.g. wrt={_embedding(graph) or 'embed'!r}."
        )
    results = [node for node in region if any(user not in region for user in node.users)]
    real = [node for node in results if _is_real(node)]
    if len(real) != 1:
        raise CaptureError(
            f"The module {name!r} passes {len(real)} floating-point tensors on, so it is no single input; "
            "name a module with one result."
        )
    again = sorted({call for node in graph.nodes for call in calls(node) if call.startswith(f"{name}@")})
    if again:
        raise CaptureError(
            f"The module {name!r} is called {len(again) + 1} times; name one of its calls: "
            f"{', '.join([f'{name}@0', *again])}."
        )
    return real


def _no_distance(graph: Graph, given: Sequence[Argument], problem: str) -> str:
    """The problem, that there is no distance between values of these arguments, with what they are and what to do."""
    kinds = (a.value.dtype if isinstance(a.value, Tensor) else type(a.value).__name__ for a in given)
    types = ", ".join(f"{a.name}: {kind}" for a, kind in zip(given, kinds, strict=True))
    if any(isinstance(a.value, Tensor) and a.value.is_complex() for a in given):
        remedy = "complex numbers are not supported: write the model on real and imaginary parts, torch.view_as_real(x)"
    elif (module := _embedding(graph)) is None:
        remedy = "give numbers the model takes as floating point, x.float()"
    elif module:
        remedy = f"name the module whose result is the input, e.g. wrt={module!r}"
    else:
        remedy = "the model is an embedding and nothing behind it, so there is nothing to bound"
    return f"{problem} ({types}), so there is no distance between its values; {remedy}."


def _with_name(given: Sequence[Argument], name: str) -> list[Argument]:
    return [a for a in given if name in (a.name, a.parameter, a.node.target)]


def named_calls(given: Sequence[Argument], wrt: str | tuple[str, ...] | None) -> list[str]:
    """The module calls that `wrt` names, as `calls` writes them: those whose results are inputs, in the same order."""
    names = (wrt,) if isinstance(wrt, str) else wrt or ()
    return [name.removesuffix("@0") for name in names if not _with_name(given, name)]


def _is_real(node: Node) -> bool:
    like = node.meta.get("val")
    return isinstance(like, Tensor) and like.is_floating_point()


def _embedding(graph: Graph) -> str | None:
    """The path of the module of the first embedding; None if there is none."""
    embeddings = (node for node in graph.nodes if node.target in _EMBEDDINGS)
    return next(((calls(node) or ("",))[-1] for node in embeddings), None)


def place_inputs(nodes: Sequence[Node]) -> tuple[Builder, dict[Node, Ref]]:
    """A builder whose source is one sample of the nodes, and a reference for each of them with its traced shape.

    One node keeps its shape without the batch axis, and a single number has one axis of length one; several nodes are
    flattened and joined.
    """
    shapes: list[Shape] = [tuple(node.meta["val"].shape) for node in nodes]
    if len(nodes) == 1:
        sample = shapes[0][1:] if shapes[0][:1] == (1,) else shapes[0]
        builder = Builder(sample or (1,))
        return builder, {nodes[0]: builder.reshape(builder.source, shapes[0])}
    ends = list(accumulate(math.prod(shape) for shape in shapes))
    builder = Builder((ends[-1],))
    refs: dict[Node, Ref] = {}
    for node, shape, end in zip(nodes, shapes, ends, strict=True):
        part = builder.linear(select((ends[-1],), slice(end - math.prod(shape), end)), builder.source)
        refs[node] = builder.reshape(part, shape)
    return builder, refs


def choose_output(program: ExportedProgram, graph: Graph, output: str | int | None) -> tuple[int, Node]:
    """The one result asked for: its position among the tensors returned, and its node."""
    returned: Any = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    nodes = [returned[at] for at in user_outputs(program)]
    names = _result_names(program, len(nodes))
    tensors = {
        name: node
        for name, node in zip(names, nodes, strict=True)
        if isinstance(node, Node) and isinstance(node.meta.get("val"), Tensor)
    }
    position = 0 if output is None and len(tensors) == 1 else output
    if isinstance(position, str) and position in tensors:
        position = list(tensors).index(position)
    if isinstance(position, int) and 0 <= position < len(tensors):
        return position, list(tensors.values())[position]
    if not tensors:
        raise CaptureError("The model returns no tensor, so there is nothing to bound; return one from its forward.")
    # Positions are names too, and are said where they are the only ones.
    named = list(tensors) != [str(at) for at in range(len(tensors))]
    known = ", ".join(f"{name} ({at})" if named else name for at, name in enumerate(tensors))
    if output is None:
        raise CaptureError(
            f"The model returns {len(tensors)} tensors; name one of them by output (--output on the command line): "
            f"{known}."
        )
    if len(tensors) == 1:
        raise CaptureError(f"The model returns one tensor, so output {output!r} names nothing; leave it out.")
    raise CaptureError(
        f"The model returns no tensor called {output!r}; output (--output on the command line) is one of: {known}."
    )


def _result_names(program: ExportedProgram, count: int) -> list[str]:
    spec = program.call_spec.out_spec
    assert spec is not None
    shape = pytree.tree_unflatten(list(range(count)), spec)
    try:
        paths: Sequence[tuple[Any, Any]] = pytree.tree_flatten_with_path(shape)[0]
    except ValueError:
        # A container that is registered without names for its parts.
        return [str(at) for at in range(count)]
    return [_write_path(path) for path, _ in paths]


def _write_path(path: tuple[Any, ...]) -> str:
    """A path as one would write it: a.b[0]."""
    text = ""
    for key in path:
        match key:
            case pytree.MappingKey():
                text += f".{key.key}"
            case pytree.GetAttrKey():
                text += f".{key.name}"
            case _:
                text += f"[{key.idx}]" if text else f".{key.idx}"
    return text.removeprefix(".") or "0"
