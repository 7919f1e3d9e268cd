"""The model itself, run with other values for what its network is a function of."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from lipkit.errors import ArgumentError
from lipkit.trace.export_failures import first_line
from lipkit.trace.exported_graph import Folded, calls, fold
from lipkit.trace.model_signature import Argument


class NoAnswer(Exception):
    """Why a model has no answer to other values, as the end of a sentence."""


@final
@dataclass(frozen=True, eq=False)
class Exchange:
    """A model, its arguments as they flatten (`spec`), and which of its values are the input of the network.

    `sources` are nodes of the graph: arguments, or the results of the module calls that `paths` names in their order.
    The answer is the tensor number `position` that the model returns.
    """

    model: nn.Module
    given: Sequence[Argument]
    spec: Any
    sources: Sequence[Node]
    paths: Sequence[str]
    position: int

    def example(self) -> list[Tensor]:
        """The values of the sources in the example; runs the model if one of them is the result of a module."""
        seen: dict[Node, Tensor] = {a.node: a.value for a in self.given if isinstance(a.value, Tensor)}
        inner = self._inner()
        if inner:
            self._run({}, dict.fromkeys(inner), seen)
        return [seen[node].detach().clone() for node in self.sources]

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """The model's answer with these values of the sources; on copies, because a model may work in place."""
        new = {node: value.clone() for node, value in zip(self.sources, values, strict=True)}
        inner = self._inner()
        returned = self._run(new, {node: new[node] for node in inner}, {})
        return [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)][self.position]

    def results(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """The results of the first call of each module with these values, in the order of their ends; tensors only."""
        found: dict[str, Tensor] = {}

        def note(path: str, returned: object) -> None:
            if isinstance(returned, Tensor) and returned.numel():
                # A copy: what follows may work in place.
                _ = found.setdefault(path, returned.detach().clone())

        with ExitStack() as hooks:
            for path, module in self.model.named_modules():
                handle = module.register_forward_hook(lambda _m, _a, returned, path=path: note(path, returned))
                _ = hooks.callback(handle.remove)
            _ = self(values)
        return found

    def _inner(self) -> dict[Node, str]:
        """The sources that are results of modules, with the calls that give them."""
        outer = {argument.node for argument in self.given}
        return dict(zip((node for node in self.sources if node not in outer), self.paths, strict=True))

    def _run(self, new: Mapping[Node, Tensor], inner: Mapping[Node, Tensor | None], seen: dict[Node, Tensor]) -> object:
        leaves = [new.get(a.node, a.value.clone() if isinstance(a.value, Tensor) else a.value) for a in self.given]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        paths = self._inner()
        with ExitStack() as hooks:
            for node, value in inner.items():
                hooks.enter_context(_exchange_result(self.model, paths[node], node, value, seen))
            return self.model(*args, **kwargs)


@final
@dataclass(frozen=True, eq=False)
class GraphRun:
    """The exported graph instead of its model, run in the same way: for models that cannot be run with other values.

    `known` are the values of everything that the graph is given, `target` is the node of the answer.
    """

    folded: Folded
    known: Mapping[Node, object]
    sources: Sequence[Node]
    target: Node

    def example(self) -> list[Tensor]:
        """The values of the sources in the example."""
        values = [self.known[node] if node in self.known else self._computed(node) for node in self.sources]
        return [value.detach().clone() for value in values if isinstance(value, Tensor)]

    def _computed(self, node: Node) -> object:
        return fold(node.graph, (), self.known, node).constants[node]

    def __call__(self, values: Sequence[Tensor]) -> Tensor:
        """The answer of the graph with these values of the sources."""
        found: dict[Node, Any] = {**self.folded.constants, **dict(zip(self.sources, values, strict=True))}

        def value(node: Node) -> Any:
            return found[self.folded.representative(node)]

        for step in self.folded.steps:
            assert callable(step.target)
            found[step] = step.target(*map_arg(step.args, value), **map_arg(step.kwargs, value))
        return value(self.target)

    def results(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """Nothing: a graph has no modules to ask."""
        del values
        return {}


def runnable_example(run: Exchange | GraphRun) -> list[Tensor]:
    """The input in the example, in the type of the weights if the model does not run in its own.

    Raises `NoAnswer` if the model does not run at all, and refuses an example that is not finite.
    """
    try:
        example = run.example()
        _ = run(example)
    except NoAnswer:
        raise
    except Exception as error:
        other = _in_the_type_of_the_weights(run, error)
        if other is None:
            raise NoAnswer(f"it raises on the example: {first_line(error).removesuffix('.')}") from error
        example = other
    wrong = [tuple(value.shape) for value in example if not bool(torch.isfinite(value).all())]
    if wrong:
        raise ArgumentError(
            f"The example has NaN or infinite entries (an input of shape {wrong[0]}); give finite numbers. A mask of "
            "infinite numbers is a constant: name the other inputs with wrt=."
        )
    return example


def _in_the_type_of_the_weights(run: Exchange | GraphRun, error: Exception) -> list[Tensor] | None:
    """The example in the one floating-point type of the model's weights, if the model then runs."""
    if not isinstance(run, Exchange) or "type" not in str(error):
        return None
    types = {weight.dtype for weight in run.model.parameters() if weight.is_floating_point()}
    if len(types) != 1:
        return None
    dtype = types.pop()
    with suppress(Exception):
        example = [value.to(dtype) for value in run.example()]
        _ = run(example)
        return example
    return None


def _no_exchange(call: str) -> NoAnswer:
    return NoAnswer(f"the result of the module {call!r} is not one tensor that can be exchanged")


@contextmanager
def _exchange_result(
    model: nn.Module, call: str, node: Node, value: Tensor | None, seen: dict[Node, Tensor]
) -> Iterator[None]:
    """Within this block the call gives `value`, unless that is None; what it gives by itself is put into `seen`."""
    known = dict(model.named_modules(remove_duplicate=False))
    module = known.get(call.partition("@")[0])
    if module is None:
        raise _no_exchange(call)
    # Hooks do not tell under which name a module is called, so its calls are counted over all of its names.
    names = {path for path, other in known.items() if other is module}
    order = list(dict.fromkeys(c for n in node.graph.nodes for c in calls(n) if c.partition("@")[0] in names))
    place, count = order.index(call), 0
    like = node.meta["val"]

    def hook(_module: nn.Module, _args: Any, returned: Any) -> Any:
        nonlocal count
        count += 1
        if count != place + 1:
            return returned
        leaves, spec = pytree.tree_flatten(returned)
        fitting = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and _alike(leaf, like)]
        if len(fitting) != 1:
            raise _no_exchange(call)
        seen[node] = leaves[fitting[0]]
        if value is not None:
            leaves[fitting[0]] = value
        return pytree.tree_unflatten(leaves, spec)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
    if count != len(order):
        raise _no_exchange(call)


def _alike(leaf: Tensor, like: Tensor) -> bool:
    return leaf.shape == like.shape and leaf.dtype == like.dtype
