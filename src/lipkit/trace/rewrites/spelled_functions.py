"""Functions of one variable that a model spells out in several operations: sin(x)^2, sqrt(1 + x^2), exp(-x^2), ..."""

from lipkit.trace.network import Network
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.activations.composed import Composed
from lipkit.trace.nodes.activations.formula_steps import Chosen
from lipkit.trace.rewrites.exchange_rows import Rewriting
from lipkit.trace.rewrites.one_variable_forms import Forms, has_constant


def merge_functions(network: Network) -> Network:
    """The same function with formulas of one value as one activation each.

    Products and squares have no constant on the whole space, while many formulas made of them have. A formula is
    merged if an operation in it has none and the whole has; all others stay.
    """
    forms, rewriting = Forms(network), Rewriting(network)
    for k, node in enumerate(network.nodes, start=1):
        form = forms.of(k)
        if form is None or not form.grows:
            continue
        activation = Composed(form.label, tuple(step for step in form.steps if not isinstance(step, Chosen)))
        if has_constant(Pointwise(activation, ())):
            rewriting.replace(k, Pointwise(activation, node.target), forms.row(form, node.target))
    return rewriting.result()
