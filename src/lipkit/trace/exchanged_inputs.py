"""The model itself, run with other values for what its network is a function of."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from lipkit.trace.exported_graph import calls
from lipkit.trace.model_signature import Argument


class CannotExchange(Exception):
    """The result of a module is not one tensor that a hook could exchange."""


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
        """What the first call of each module gives with these values, in the order of their ends; tensors only."""
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


@contextmanager
def _exchange_result(
    model: nn.Module, call: str, node: Node, value: Tensor | None, seen: dict[Node, Tensor]
) -> Iterator[None]:
    """Within this block the call gives `value`, unless that is None; what it gives by itself is put into `seen`."""
    known = dict(model.named_modules(remove_duplicate=False))
    module = known.get(call.partition("@")[0])
    if module is None:
        raise CannotExchange
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
            raise CannotExchange
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
        raise CannotExchange


def _alike(leaf: Tensor, like: Tensor) -> bool:
    return leaf.shape == like.shape and leaf.dtype == like.dtype
