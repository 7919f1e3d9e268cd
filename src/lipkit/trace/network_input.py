"""What the network is a function of: inputs of the model, or the result of one of its modules."""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.fx import Graph, Node

from lipkit.errors import CaptureError
from lipkit.linops import Shape, select
from lipkit.trace.builder import Builder, Ref
from lipkit.trace.model_signature import Argument
from lipkit.trace.torch_export import calls


def sources(graph: Graph, given: Sequence[Argument], wrt: str | tuple[str, ...] | None) -> list[Node]:
    """The nodes whose values are the input, in order."""
    if wrt is None:
        found = [argument.node for argument in given if argument.is_real]
        if not found:
            raise CaptureError(
                "The model has no floating-point input, so distances start later: name the module whose result is the "
                f"input, e.g. wrt={_example_module(graph)!r}."
            )
        return found
    nodes: list[Node] = []
    for name in (wrt,) if isinstance(wrt, str) else wrt:
        nodes += _named(graph, given, name)
    if len(set(nodes)) != len(nodes) or not nodes:
        raise CaptureError(f"wrt={wrt!r} must name every input once.")
    return nodes


def _named(graph: Graph, given: Sequence[Argument], name: str) -> list[Node]:
    arguments = _arguments(given, name)
    if arguments:
        real = [a.node for a in arguments if a.is_real]
        if not real:
            raise CaptureError(
                f"The input {name!r} is not a floating-point tensor, so there is no distance between its values; name "
                f"the module whose result is the input, e.g. wrt={_example_module(graph)!r}."
            )
        return real
    # `a@0` is the first call of a module that is called several times.
    call = name.removesuffix("@0")
    region = {node for node in graph.nodes if call in calls(node)}
    if not region:
        inputs = ", ".join(sorted({a.parameter for a in given}))
        raise CaptureError(
            f"wrt={name!r} is neither an input of the model (those are: {inputs}) nor the path of a module that runs "
            f"an operation; see model.named_modules() for the paths, e.g. wrt={_example_module(graph)!r}."
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


def _arguments(given: Sequence[Argument], name: str) -> list[Argument]:
    return [a for a in given if name in (a.name, a.parameter, a.node.target)]


def inner(given: Sequence[Argument], wrt: str | tuple[str, ...] | None) -> list[str]:
    """The module calls that `wrt` names, as `calls` writes them: those whose results are sources, in the same order."""
    names = (wrt,) if isinstance(wrt, str) else wrt or ()
    return [name.removesuffix("@0") for name in names if not _arguments(given, name)]


def _is_real(node: Node) -> bool:
    like = node.meta.get("val")
    return isinstance(like, Tensor) and like.is_floating_point()


def _example_module(graph: Graph) -> str:
    """The module of the first embedding, if there is one."""
    embeddings = (node for node in graph.nodes if node.target is torch.ops.aten.embedding.default)
    return next(((calls(node) or ("",))[-1] for node in embeddings), "embed")


def placed(nodes: Sequence[Node]) -> tuple[Builder, dict[Node, Ref]]:
    """A builder whose source is one sample of the nodes, and a reference for each of them with its traced shape.

    One node keeps its shape without the batch axis; several are flattened and joined.
    """
    shapes: list[Shape] = [tuple(node.meta["val"].shape) for node in nodes]
    if len(nodes) == 1:
        sample = shapes[0][1:] if shapes[0][:1] == (1,) else shapes[0]
        builder = Builder(sample)
        return builder, {nodes[0]: builder.reshape(builder.source, shapes[0])}
    ends = list(accumulate(math.prod(shape) for shape in shapes))
    builder = Builder((ends[-1],))
    refs: dict[Node, Ref] = {}
    for node, shape, end in zip(nodes, shapes, ends, strict=True):
        part = builder.linear(select((ends[-1],), slice(end - math.prod(shape), end)), builder.source)
        refs[node] = builder.reshape(part, shape)
    return builder, refs
