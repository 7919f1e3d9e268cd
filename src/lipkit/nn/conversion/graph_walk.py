"""The walk over a traced model: one verdict for each operation, and its replacement in the graph."""

import operator
from collections.abc import Callable
from typing import TypeVar, final

import torch
from torch import fx, nn
from torch.nn import functional

from lipkit.errors import LipkitError
from lipkit.nn.combinators.branch import Concat
from lipkit.nn.combinators.sums import ConvexSum
from lipkit.nn.conversion import attention_modules, functions, joined_branches, recurrent_modules
from lipkit.nn.conversion.conversion_report import ConversionVerdict, Row
from lipkit.nn.conversion.converted_layers import Shift
from lipkit.nn.conversion.in_place_changes import find_overwritten
from lipkit.nn.conversion.modules import DROPOUT, TRANSFORMERS, replacement
from lipkit.nn.conversion.replacement import Choices, Refusal, Replacement
from lipkit.nn.conversion.ties import Ties
from lipkit.nn.core.gain import gain_of

_M = TypeVar("_M", bound=nn.Module)
_ELSE = "put a module with a property `gain` in its place, or leave its module out of the conversion by `skip`"


@final
class Walk:
    """Rewrites a graph so that every tensor in it is a 1-Lipschitz function of the input.

    `scales` holds the tensors that depend on the input, and how each compares with the one of the original model:
    values in the twin are about scale times those of the original, which tells biases and sums how to start.
    `unbounded` holds the places of skipped modules whose constant is above 1 or not known.
    """

    def __init__(self, body: fx.GraphModule, choices: Choices, skipped: frozenset[nn.Module]) -> None:
        self.body = body
        self.choices = choices
        self.skipped = skipped
        self.scales: dict[fx.Node, float] = {}
        self.rows: list[Row] = []
        self.unbounded: list[str] = []
        self.done: dict[str, Replacement] = {}
        self.was: dict[str, str] = {}
        self.originals: dict[str, nn.Module] = {}
        self.offsets: dict[tuple[str, float], Shift] = {}
        self.ties = Ties(body)
        self.overwritten = find_overwritten(body)
        # New parts get the type and the device of the first floating tensor of the model.
        tensors = (*body.parameters(), *body.buffers())
        self.like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)

    def run(self) -> None:
        """Visit every node; refusals are collected in the rows."""
        for node in list(self.body.graph.nodes):
            try:
                self._visit(node)
            except Refusal as refusal:
                self.report(node, ConversionVerdict.REFUSED, str(refusal))
                # Go on as if this had worked, so that one error names all gaps.
                self.scales[node] = 1.0
        self._drop_copied_tensors()
        self.body.graph.lint()
        self.body.recompile()

    def _drop_copied_tensors(self) -> None:
        """Take tensors out of the model that only new parts use: they would wait for gradients in vain."""
        reads = [node for node in self.body.graph.nodes if node.op == "get_attr"]
        used = {node.target for node in reads if node.users}
        for node in reads:
            if not node.users:
                self.body.graph.erase_node(node)
        for target in {str(node.target) for node in reads if node.target not in used}:
            path, _, name = target.rpartition(".")
            delattr(self.body.get_submodule(path), name)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.scales:
                raise Refusal("a constant belongs to one input; bind the others, e.g. in a module that calls the model")
            self.scales[node] = 1.0
        elif node.op == "output":
            found = node.args[0]
            if not (isinstance(found, fx.Node) and found in self.scales) or functions.gives_several(found):
                raise Refusal("return one tensor that depends on the input, and no dictionary or tuple")
        elif any(arg in self.scales for arg in node.all_input_nodes):
            if node in self.overwritten:
                raise Refusal("it changes a tensor that is used elsewhere too; set inplace=False, or write x = x + y")
            {"call_module": self._module, "call_function": self._function, "call_method": self._function}[node.op](node)

    def report(self, node: fx.Node, verdict: ConversionVerdict, now: str) -> None:
        """Add a row about a node."""
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0] if stack else ""
        name = str(node.target) if node.op == "call_module" else functions.name_of(node.target)
        if node.op == "call_module":
            place, was = name, self.was.get(name, type(self.body.get_submodule(name)).__name__)
        else:
            place, was = (f"{path}.{node.name}" if path else node.name), name
        self.rows.append(Row(place, was, verdict, now))

    # Modules

    def _module(self, node: fx.Node) -> None:
        target = str(node.target)
        module = self.body.get_submodule(target)
        self.was.setdefault(target, type(module).__name__)
        if isinstance(module, ConvexSum | Concat):
            self.scales[node] = 1.0
            return
        if module in self.skipped:
            self._skip(node, module)
            return
        original = self.originals.setdefault(target, module)
        if isinstance(original, nn.MultiheadAttention):
            attention_modules.convert_attention(self, node, original)
            return
        if isinstance(original, nn.RNNBase):
            recurrent_modules.convert_recurrent(self, node, original)
            return
        if isinstance(original, recurrent_modules.CELLS):
            raise Refusal(f"use nn.{type(original).__name__.removesuffix('Cell')} over the whole sequence in its place")
        source = self.only_input(node)
        if isinstance(original, TRANSFORMERS) and (len(node.args) > 1 or node.kwargs):
            raise Refusal("masks that are tensors have no counterpart; call it with the sequence alone")
        if getattr(module, "inplace", False):
            vars(module)["inplace"] = False
        if target not in self.done:
            found = replacement(module, self.scales[source], self.choices, self.like)
            tie = self.ties.keep(target, module, found.module or module)
            self.done[target] = Replacement(found.module, found.words + tie, found.ratio)
        found = self.done[target]
        self.report(node, ConversionVerdict.KEPT if found.module is None else ConversionVerdict.CHANGED, found.words)
        if found.module is not None:
            self.body.set_submodule(target, found.module)
        self.scales[node] = self.scales[source] * found.ratio

    def exchange(self, node: fx.Node, source: fx.Node, build: Callable[[], nn.Module]) -> None:
        """Put a module of one input in the place of one that took and gave several tensors, the same at every call."""
        target = str(node.target)
        if target not in self.done:
            self.done[target] = Replacement(build(), "")
            self.body.set_submodule(target, self.done[target].module or nn.Identity())
        node.args, node.kwargs = (source,), {}
        # What it gives has little to do with the size of what the original gave.
        self.scales[node] = 1.0

    def _skip(self, node: fx.Node, module: nn.Module) -> None:
        try:
            # A gain is about one input: two tensors that depend on the same x are up to sqrt(2) times as long.
            gain = gain_of(module) if len(self._live_arguments(node)) == 1 else float("inf")
        except LipkitError:
            gain = float("inf")
        words = f"constant {gain:.4g}" if gain <= 1 else "as it was: the constant of the twin is not promised"
        tie = self.ties.keep(str(node.target), module, module)
        self.unbounded += [str(node.target)] if gain > 1 else []
        self.report(node, ConversionVerdict.SKIPPED, words + tie)
        self.scales[node] = 1.0

    # Functions and methods

    def _function(self, node: fx.Node) -> None:
        target = node.target
        if functions.reads_shape(node):
            return
        if target in functions.ADD or target in functions.SUB:
            joined_branches.convert_sum(self, node)
        elif target in functions.MUL or target in functions.DIV:
            joined_branches.convert_factor(self, node)
        elif target is attention_modules.IS_ATTENTION:
            attention_modules.convert_function(self, node)
        elif target in functions.CAT or target in functions.STACK:
            joined_branches.convert_concatenation(self, node)
        elif target is operator.getitem or target in functions.MOVES or target is functional.pad:
            self._move(node)
        else:
            self._replace_function(node)

    def only_input(self, node: fx.Node) -> fx.Node:
        """The tensor that depends on the input, if it is one and the first argument."""
        live = self._live_arguments(node)
        if len(live) != 1 or not node.args or node.args[0] is not live[0]:
            raise Refusal(f"it takes several tensors that depend on the input, or one by its name; {_ELSE}")
        return live[0]

    def _live_arguments(self, node: fx.Node) -> list[fx.Node]:
        """The arguments that depend on the input, one that is given twice twice."""
        found: list[fx.Node] = []
        fx.map_arg((node.args, node.kwargs), found.append)
        return [arg for arg in found if arg in self.scales]

    def _move(self, node: fx.Node) -> None:
        source = self.only_input(node)
        if node.target is operator.getitem and not functions.is_static_index(node.args[1]):
            raise Refusal("an index by a list or a tensor may repeat entries; use slices")
        if node.target is functional.pad and not functions.is_zero_padding(node.args, node.kwargs):
            raise Refusal("this padding repeats entries of the border; use mode='constant'")
        given = (*node.args, *node.kwargs.values())
        if node.target == "view" and any(isinstance(arg, torch.dtype) for arg in given):
            raise Refusal("reading the bits of numbers as others has no constant; use .to(dtype)")
        if not functions.keeps_values(given, self.body):
            raise Refusal("rounding to whole numbers jumps; stay with floating numbers")
        self.scales[node] = self.scales[source]

    def _replace_function(self, node: fx.Node) -> None:
        if node.target in functions.PRODUCTS and len(self._live_arguments(node)) > 1:
            raise Refusal(
                "a product of two tensors that depend on the input has no constant; write attention as "
                "F.scaled_dot_product_attention(q, k, v) or nn.MultiheadAttention"
            )
        source = self.only_input(node)
        build = functions.BUILDERS.get(node.target)
        module = None if build is None else build(*node.args, **node.kwargs)
        if module is None:
            advice = functions.ADVICE.get(node.target, "use the module of torch.nn in its place")
            raise Refusal(f"it has no known constant; {advice}, or {_ELSE}")
        if isinstance(module, DROPOUT) and module.training != self.body.training:
            raise Refusal(
                "whether it is random does not follow the mode of the model; write F.dropout(x, p, self.training), or "
                "use nn.Dropout"
            )
        found = replacement(module, self.scales[source], self.choices, self.like)
        changed = found.module is not None
        self.report(node, ConversionVerdict.CHANGED if changed else ConversionVerdict.KEPT, found.words)
        self.replace_node(node, self.place(found.module or module), (source,), self.scales[source] * found.ratio)

    # Changes of the graph

    def place(self, module: _M) -> _M:
        """A new part in the type and on the device of the model."""
        return module if self.like is None else module.to(self.like)

    def replace_node(self, node: fx.Node, module: nn.Module, args: tuple[fx.Node, ...], scale: float) -> None:
        """Put a module in the place of a node."""
        name = f"{node.name}_lipschitz"
        self.body.add_submodule(name, module)
        with self.body.graph.inserting_before(node):
            new = self.body.graph.call_module(name, args)
        self.scales[new] = scale
        node.replace_all_uses_with(new)
        self.body.graph.erase_node(node)
