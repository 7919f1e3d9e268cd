"""An ordinary model, rewritten into a twin with a constant."""

import copy
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn.parameter import is_lazy

from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn.conversion.conversion_report import ConversionReport, ConversionVerdict, table
from lipkit.nn.conversion.graph_walk import Walk
from lipkit.nn.conversion.replacement import Choices
from lipkit.nn.conversion.skip_list import find_skipped
from lipkit.nn.conversion.transfer import ConversionStart
from lipkit.nn.core.gain import HasGain
from lipkit.nn.core.known_constants import SAFE, Stated
from lipkit.nn.layers._constrained_layer import ConstrainedLayer
from lipkit.nn.methods._base import WeightMethod
from lipkit.nn.methods.bjorck import Bjorck
from lipkit.nn.methods.convolutions.aoc import AOC


@final
class LipschitzTwin(Stated):
    """A converted model: `body`, in which every tensor is a 1-Lipschitz function of the input, times K.

    Guarantee: constant K on inputs of every shape, in evaluation mode; with BatchCentering in training for a batch as
    one input, with dropout in evaluation only. Where `unbounded` parts were skipped, none by construction:
    `lipkit.lipschitz` then reads the body, and the constants of these parts count.
    """

    def __init__(self, body: nn.Module, K: float, unbounded: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.body = body
        self.K = K
        self.unbounded = unbounded
        self.parts = _parts(body)

    @property
    def gain(self) -> float:
        """K, while the layers are those of the conversion: others, plain ones for example, keep no constraint."""
        if self.unbounded:
            raise UnsupportedError(
                f"The constant of this twin is not promised, because the conversion skipped {self.unbounded[0]}; bound "
                "the twin with lipkit.lipschitz."
            )
        now = _parts(self.body)
        changed = {path for path, _ in {*now.items()} ^ {*self.parts.items()}}
        # Other methods, or fewer digits, may leave a layer of the same kind above one.
        changed |= {
            path for path, part in self.body.named_modules() if isinstance(part, ConstrainedLayer) and part.gain > 1
        }
        if changed:
            raise UnsupportedError(
                f"This twin is not as it was converted, or has fewer digits than float32, at {min(changed)}: its "
                "constant is not known for all time; measure the model as it is with lipkit.lipschitz."
            )
        return self.K

    def forward(self, x: Tensor) -> Tensor:
        """K times the body."""
        found = self.body(x)
        return found if self.K == 1.0 else found * (self.K * SAFE)


def _parts(body: nn.Module) -> dict[str, str]:
    """The class of the module at each path; constrained layers have another class than plain ones."""
    return {path: type(module).__name__ for path, module in body.named_modules()}


def lipschitzify(
    model: nn.Module,
    K: float = 1.0,
    linear: WeightMethod | None = None,
    conv: WeightMethod | None = None,
    start: ConversionStart = ConversionStart.ISOMETRY,
    skip: Sequence[str | type[nn.Module]] = (),
) -> tuple[LipschitzTwin, ConversionReport]:
    """A copy of an ordinary model with constant K by construction, and a report of what was changed and kept.

    nn.Linear and convolutions become constrained layers, by `linear` (Bjorck()) and `conv` (AOC()); sums become convex
    combinations, concatenations are scaled, batch normalisation becomes centering and a bounded scale, pooling is
    divided by its constant, activations with slopes above 1 by their slope. Self-attention becomes `L2Attention`, or
    attention by angles where torch's function is called; LSTM and GRU become `GRU`, layer, group and root mean square
    normalisation those of lipkit.nn. With nn.Embedding the input is tokens, and K holds for the root of the number of
    changed ones. What has no place in a model with a
    constant is refused, all of it at once, with place and remedy.

    The twin is to be trained; `start` says from where. An isometry near each original layer, halves in each sum, and
    smooth rectifiers sharp enough for small signals leave both branches their gradients. ConversionStart.WEIGHTS begins
    as a multiple of the original function as far as the methods allow (weights divided by their norms; biases, means,
    shares and sharpness to their scale), but layers whose singular vectors do not meet leave little of K: measured 1e-7
    for a random ResNet-18 by AOL, 1e-4 by Spectral.

    Parameters that modules share stay shared, if both become layers of one kind; the report says which.

    Guarantee: ||twin(x) - twin(y)|| <= K ||x - y||, unless a module of larger or unknown constant is skipped. Limit:
    models that torch.fx can trace; batch statistics of the original are kept as running means for WEIGHTS only.

    Args:
        model: An ordinary model that torch.fx can trace; it is copied.
        K: The constant of the twin.
        linear: Method for nn.Linear; `Bjorck()` if None.
        conv: Method for convolutions; `AOC()` if None.
        start: Where the constrained weights start.
        skip: Modules that stay as they are: qualified names, patterns of them such as "blocks.*", or types. If the
            constant of one is above 1 or not known, the twin promises nothing by construction.
    """
    if isinstance(K, Tensor) or not 0 < K < math.inf:
        raise ArgumentError(f"lipschitzify needs a positive constant K, got {K!r:.60}; give a number, such as 1.0.")
    copied = _copy(model)
    skipped = find_skipped(copied, skip)
    body = _trace(copied, skipped)
    choices = Choices(Bjorck() if linear is None else linear, AOC() if conv is None else conv, start)
    walk = Walk(body, choices, skipped)
    walk.run()
    report = ConversionReport(K, tuple(walk.rows), tuple(dict.fromkeys(walk.unbounded)))
    refused = report.of(ConversionVerdict.REFUSED)
    if refused:
        count = "1 operation" if len(refused) == 1 else f"{len(refused)} operations"
        lines = "\n".join(table(refused))
        raise UnsupportedError(f"{count} of {type(model).__name__} without a counterpart:\n{lines}")
    return LipschitzTwin(body, K, report.unbounded).train(model.training), report


def _copy(model: object) -> nn.Module:
    """A copy of a module whose weights can be read; refuses anything else, with what to do."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ArgumentError(f"lipschitzify needs a plain torch.nn.Module, got {model!r:.60}; give the module itself.")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta:
            raise ArgumentError(f"The tensor {name} has no values yet; run the model once, or load its weights first.")
    try:
        return copy.deepcopy(model)
    except (RuntimeError, NotImplementedError) as error:
        raise UnsupportedError(
            f"{type(model).__name__} cannot be copied: {str(error).splitlines()[0]:.160} Make weights that are pruned "
            "or reparametrised by torch.nn.utils permanent (prune.remove, remove_weight_norm), and sparse or nested "
            "ones dense, first."
        ) from error


class _Proxy(fx.Proxy):
    """Records x += y as a change in place, which torch.fx would take for x = x + y."""

    def _in_place(self, function: Callable[..., object], other: object) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    __iadd__ = partialmethod(_in_place, operator.iadd)
    __isub__ = partialmethod(_in_place, operator.isub)
    __imul__ = partialmethod(_in_place, operator.imul)
    __itruediv__ = partialmethod(_in_place, operator.itruediv)


class _Tracer(fx.Tracer):
    """Stops at the modules of torch.nn and of lipkit.nn, at those that state their `gain`, and at skipped ones."""

    def __init__(self, skipped: frozenset[nn.Module]) -> None:
        super().__init__()
        self.skipped = skipped

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if m in self.skipped or type(m).__module__.startswith("lipkit.nn"):
            return True
        # The name is also that of learnt scales, which are tensors.
        stated = isinstance(m, HasGain) and isinstance(m.gain, int | float)
        return stated or super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module, skipped: frozenset[nn.Module]) -> fx.GraphModule:
    tracer = _Tracer(skipped)
    root: Any = nn.Sequential(model) if tracer.is_leaf_module(model, "") else model
    arguments = inspect.signature(root.forward).parameters.values()
    # Arguments that a call may leave out have the value that they have then.
    bound = {arg.name: arg.default for arg in arguments if arg.default is not inspect.Parameter.empty}
    try:
        graph = tracer.trace(root, bound)
    except (TypeError, RuntimeError, AttributeError, ValueError, NotImplementedError, TraceError) as error:
        raise UnsupportedError(
            f"torch.fx cannot trace {type(model).__name__}: {error}. Control flow that depends on values has no "
            "constant; move it out of the model, name the module in `skip`, or give it a property `gain`."
        ) from error
    _unbind(graph, frozenset(bound))
    return fx.GraphModule(root, graph)


def _unbind(graph: fx.Graph, names: frozenset[str]) -> None:
    """Erase the inputs that have fixed values, with the checks that torch.fx adds for them."""
    for source in [node for node in graph.nodes if node.op == "placeholder"]:
        if source.name not in names and str(source.target).removesuffix("_1") not in names:
            continue
        found = {source}
        for node in graph.nodes:
            if not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        # A value that reaches the output is an input after all, and is refused as such.
        if all(node.op != "output" for node in found):
            for node in reversed([node for node in graph.nodes if node in found]):
                graph.erase_node(node)
