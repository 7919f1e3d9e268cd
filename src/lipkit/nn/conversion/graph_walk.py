"""The walk over a traced model: one verdict for each operation, and its replacement in the graph."""

import operator
from typing import Any, TypeVar, final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lipkit.nn.combinators.branch import Concat
from lipkit.nn.combinators.sums import ConvexSum
from lipkit.nn.conversion import functions
from lipkit.nn.conversion.conversion_report import ConversionVerdict, Row
from lipkit.nn.conversion.converted_layers import Shift
from lipkit.nn.conversion.modules import DROPOUT, Choices, Refusal, Replacement, replacement
from lipkit.nn.conversion.transfer import ConversionStart

# Each of n sums starts with a share of 1 / (4 n) for its longer branch. Along the shorter branches (1 - 1 / (4 n))^n of
# a signal is left, at least .75 at every depth.
_LONGER = 0.25
_M = TypeVar("_M", bound=nn.Module)
_ELSE = "register a module with a property `gain` in its place, or leave this part out of the conversion"


@final
class Walk:
    """Rewrites a graph so that every tensor in it is a 1-Lipschitz function of the input.

    `scales` holds the tensors that depend on the input, and how each compares with the one of the original model:
    values in the twin are about scale times those of the original, which tells biases and sums how to start.
    """

    def __init__(self, body: fx.GraphModule, choices: Choices) -> None:
        self.body = body
        self.choices = choices
        self.scales: dict[fx.Node, float] = {}
        self.rows: list[Row] = []
        self.done: dict[str, Replacement] = {}
        self.was: dict[str, str] = {}
        self.depths: dict[fx.Node, int] = {}
        # New parts get the type and the device of the first floating tensor of the model.
        tensors = (*body.parameters(), *body.buffers())
        self.like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
        self.sums = max(1, sum(node.target in functions.ADD | functions.SUB for node in body.graph.nodes))

    def run(self) -> None:
        """Visit every node; refusals are collected in the rows."""
        for node in list(self.body.graph.nodes):
            try:
                self._visit(node)
            except Refusal as refusal:
                self._report(node, ConversionVerdict.REFUSED, str(refusal))
                # Go on as if this had worked, so that one error names all gaps.
                self.scales[node] = 1.0
        self.body.graph.lint()
        self.body.recompile()

    def _visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self.scales:
                raise Refusal("a constant belongs to one input; bind the others, e.g. in a module that calls the model")
            self.scales[node] = 1.0
        elif node.op == "output":
            if not (isinstance(node.args[0], fx.Node) and node.args[0] in self.scales):
                raise Refusal("return one tensor that depends on the input")
        elif any(arg in self.scales for arg in node.all_input_nodes):
            {"call_module": self._module, "call_function": self._function, "call_method": self._function}[node.op](node)

    def _report(self, node: fx.Node, verdict: ConversionVerdict, now: str) -> None:
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path = stack[-1][0] if stack else ""
        name = str(node.target) if node.op == "call_module" else functions.name_of(node.target)
        if node.op == "call_module":
            place, was = name, self.was[name]
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
        source = self._only_input(node)
        if getattr(module, "inplace", False):
            self._check_unaliased(node, source)
            vars(module)["inplace"] = False
        if target not in self.done:
            self.done[target] = replacement(module, self.scales[source], self.choices, self.like)
        found = self.done[target]
        self._report(node, ConversionVerdict.KEPT if found.module is None else ConversionVerdict.CHANGED, found.words)
        if found.module is not None:
            self.body.set_submodule(target, found.module)
        self.scales[node] = self.scales[source] * found.ratio

    # Functions and methods

    def _function(self, node: fx.Node) -> None:
        target = node.target
        if target in functions.SHAPES or (target is getattr and node.args[1] in functions.SHAPES):
            return
        if target in functions.ADD or target in functions.SUB:
            self._sum(node)
        elif target in functions.MUL or target in functions.DIV:
            self._factor(node)
        elif target in functions.CAT or target in functions.STACK:
            self._cat(node)
        elif target is operator.getitem or target in functions.MOVES or target is functional.pad:
            self._move(node)
        else:
            self._replace_function(node)

    def _only_input(self, node: fx.Node) -> fx.Node:
        live = [arg for arg in node.all_input_nodes if arg in self.scales]
        if len(live) != 1 or not node.args or node.args[0] is not live[0]:
            raise Refusal(f"it takes several tensors that depend on the input; {_ELSE}")
        return live[0]

    def _check_unaliased(self, node: fx.Node, source: fx.Node) -> None:
        if len(source.users) > 1 or not node.users:
            raise Refusal("it changes a tensor that is used elsewhere too; set inplace=False")

    def _move(self, node: fx.Node) -> None:
        source = self._only_input(node)
        if node.target is operator.getitem and not functions.is_static_index(node.args[1]):
            raise Refusal("an index by a list or a tensor may repeat entries; use slices")
        if node.target is functional.pad and not functions.is_zero_padding(node.args, node.kwargs):
            raise Refusal("this padding repeats entries of the border; use mode='constant'")
        if node.target == "view" and any(isinstance(arg, torch.dtype) for arg in node.args):
            raise Refusal("reading the bits of numbers as others has no constant; use .to(dtype)")
        if not functions.keeps_values(node.args, node.kwargs):
            raise Refusal("rounding to whole numbers jumps; stay with floating numbers")
        self.scales[node] = self.scales[source]

    def _replace_function(self, node: fx.Node) -> None:
        build = functions.BUILDERS.get(node.target)
        module = None if build is None else build(*node.args, **node.kwargs)
        if module is None:
            raise Refusal(f"it has no known constant; use the module of torch.nn in its place, or {_ELSE}")
        if isinstance(module, DROPOUT) and module.training != self.body.training:
            raise Refusal(
                "whether it is random does not follow the mode of the model; write F.dropout(x, p, self.training), or "
                "use nn.Dropout"
            )
        source = self._only_input(node)
        if node.kwargs.get("inplace") or functions.name_of(node.target).endswith("_"):
            self._check_unaliased(node, source)
        found = replacement(module, self.scales[source], self.choices, self.like)
        changed = found.module is not None
        self._report(node, ConversionVerdict.CHANGED if changed else ConversionVerdict.KEPT, found.words)
        self._replace_node(node, self._place(found.module or module), (source,), self.scales[source] * found.ratio)

    def _sum(self, node: fx.Node) -> None:
        if len(node.args) != 2 or node.kwargs:
            raise Refusal("write the sum as a + b, without alpha")
        parts = list(node.args)
        live = [part for part in parts if isinstance(part, fx.Node) and part in self.scales]
        negative = node.target in functions.SUB
        if len(live) == 1:
            self._shift(node, live[0], parts[1] if parts[0] is live[0] else parts[0])
            return
        first, second = live
        if negative:
            with self.body.graph.inserting_before(node):
                second = self.body.graph.call_function(torch.neg, (second,))
            self.scales[second] = self.scales[live[1]]
        sizes = self._shares(first, second)
        module = self._place(ConvexSum((sizes[0] / sum(sizes), sizes[1] / sum(sizes))))
        shares = ", ".join(f"{weight:.3g}" for weight in module.start)
        self._report(node, ConversionVerdict.CHANGED, f"ConvexSum, starting with {shares}")
        scale = 1 / sum(1 / self.scales[part] for part in (first, second))
        self._replace_node(
            node, module, (first, second), scale if self.choices.start is ConversionStart.WEIGHTS else 1.0
        )

    def _shares(self, first: fx.Node, second: fx.Node) -> tuple[float, float]:
        """Weights of a sum: those that keep the function, or most to the part with fewer layers behind it."""
        if self.choices.start is ConversionStart.WEIGHTS:
            return 1 / self.scales[first], 1 / self.scales[second]
        a, b = (self._layers(part) for part in (first, second))
        longer = _LONGER / self.sums
        return (0.5, 0.5) if a == b else (1 - longer, longer) if a < b else (longer, 1 - longer)

    def _layers(self, node: fx.Node) -> int:
        """The number of layers behind a tensor, along its longest path."""
        if node not in self.depths:
            own = int(node.op == "call_module")
            self.depths[node] = own + max((self._layers(arg) for arg in node.all_input_nodes), default=0)
        return self.depths[node]

    def _shift(self, node: fx.Node, live: fx.Node, other: Any) -> None:
        scale = self.scales[live]
        if isinstance(other, int | float):
            node.args = tuple(live if arg is live else other * scale for arg in node.args)
            self._report(node, ConversionVerdict.KEPT, f"a translation, times {scale:.3g}")
            self.scales[node] = scale
            return
        if not (isinstance(other, fx.Node) and other.op == "get_attr") or node.args[0] is not live:
            raise Refusal("add a parameter or a buffer of the model, behind the tensor: x + self.offset")
        offset = operator.attrgetter(str(other.target))(self.body)
        sign = -1.0 if node.target in functions.SUB else 1.0
        module = Shift(offset)
        assert isinstance(module.offset, Tensor)
        module.offset.data.mul_(sign * scale)
        self._report(node, ConversionVerdict.CHANGED, f"Shift, times {scale:.3g}")
        self._replace_node(node, module, (live,), scale)

    def _factor(self, node: fx.Node) -> None:
        live = self._only_input(node) if node.args[0] in self.scales else None
        factor: Any = node.args[1] if live is not None else node.args[0]
        if live is None and node.target in functions.MUL and isinstance(node.args[1], fx.Node):
            live = node.args[1]
        if live is None or node.kwargs or not functions.is_number(factor):
            raise Refusal(
                "a product is Lipschitz only by a number; use a layer for factors of channels, gates have no "
                "constant on the whole space"
            )
        value = float(factor) if node.target in functions.MUL else 1 / float(factor)
        self._report(node, ConversionVerdict.CHANGED, f"the factor {value:.4g} left out")
        with self.body.graph.inserting_before(node):
            new = self.body.graph.call_function(operator.pos if value > 0 else operator.neg, (live,))
        self.scales[new] = self.scales[live] / abs(value)
        node.replace_all_uses_with(new)
        self.body.graph.erase_node(node)

    def _cat(self, node: fx.Node) -> None:
        axis: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        given: Any = node.args[0] if node.args else None
        given = given if isinstance(given, list | tuple) else ()
        parts = [part for part in given if isinstance(part, fx.Node) and part in self.scales]
        if not parts or len(parts) != len(given) or axis == 0:
            raise Refusal("concatenate tensors that all depend on the input, along another axis than the batch")
        if node.target in functions.STACK:
            parts = [self._with_axis(node, part, int(axis)) for part in parts]
        sizes = tuple(1 / self.scales[part] for part in parts)
        root = sum(size * size for size in sizes) ** 0.5
        module = Concat(int(axis), sizes)
        shares = ", ".join(f"{size / root:.3g}" for size in sizes)
        self._report(node, ConversionVerdict.CHANGED, f"Concat, parts times {shares}")
        self._replace_node(node, module, tuple(parts), 1 / root)

    def _with_axis(self, node: fx.Node, part: fx.Node, axis: int) -> fx.Node:
        """A part of a stack, which is a concatenation along an axis of length one."""
        with self.body.graph.inserting_before(node):
            new = self.body.graph.call_function(torch.unsqueeze, (part, axis))
        self.scales[new] = self.scales[part]
        return new

    def _place(self, module: _M) -> _M:
        """A new part in the type and on the device of the model."""
        return module if self.like is None else module.to(self.like)

    def _replace_node(self, node: fx.Node, module: nn.Module, args: tuple[fx.Node, ...], scale: float) -> None:
        name = f"{node.name}_lipschitz"
        self.body.add_submodule(name, module)
        with self.body.graph.inserting_before(node):
            new = self.body.graph.call_module(name, args)
        self.scales[new] = scale
        node.replace_all_uses_with(new)
        self.body.graph.erase_node(node)
