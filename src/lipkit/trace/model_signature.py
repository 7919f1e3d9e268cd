"""The arguments and results of a model by name."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from lipkit.errors import ArgumentError, CaptureError
from lipkit.trace.torch_export import user_inputs, user_outputs


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
        raise ArgumentError("capture needs an example with a batch axis, got no tensor with axes; give one, x[None].")
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


def result(program: ExportedProgram, graph: Graph, output: str | int | None) -> tuple[int, Node]:
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
    known = ", ".join(f"{at}: {name}" for at, name in enumerate(tensors))
    if output is None:
        raise CaptureError(f"The model returns {len(tensors)} tensors; say which one with output=, one of {{{known}}}.")
    raise CaptureError(f"The model returns no tensor called {output!r}; output= must be one of {{{known}}}.")


def _result_names(program: ExportedProgram, count: int) -> list[str]:
    spec = program.call_spec.out_spec
    assert spec is not None
    shape = pytree.tree_unflatten(list(range(count)), spec)
    try:
        paths: Sequence[tuple[Any, Any]] = pytree.tree_flatten_with_path(shape)[0]
    except ValueError:
        # A container that is registered without names for its parts.
        return [str(at) for at in range(count)]
    return [_said(path) for path, _ in paths]


def _said(path: tuple[Any, ...]) -> str:
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
