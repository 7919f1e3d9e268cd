"""Continuous functions of one value that a model spells with comparisons: where, masked_fill, products with masks."""

from collections.abc import Sequence
from dataclasses import replace

from lipkit.trace.network import Network, Refusal
from lipkit.trace.nodes import Activation, Pointwise
from lipkit.trace.nodes.activations.formula_steps import Applied, Draft
from lipkit.trace.nodes.activations.indicator import Indicator
from lipkit.trace.rewrites.exact_pieces import continuous
from lipkit.trace.rewrites.exchange_rows import Rewriting
from lipkit.trace.rewrites.one_variable_forms import Form, Forms

_UNKNOWN = Refusal(
    "compares values: its answer jumps, and what it selects is not seen to be one continuous function of one value",
    "choose with torch.where between functions of the compared value that agree where it switches, use maximum, "
    "minimum, clamp or an activation of torch, or compare something constant",
)


def merge_choices(network: Network) -> Network:
    """The same function with what comparisons choose as one activation each, where it is continuous.

    A comparison stays where nothing is proven; `jump` then says why.
    """
    return _merge(network)[0]


def jump(network: Network) -> tuple[int, Refusal]:
    """The row of a network with comparisons that may jump, and what is known of it."""
    first = next(k for k, node in enumerate(network.nodes, start=1) if _compares(node))
    return max(_merge(network)[1].items(), default=(first, _UNKNOWN), key=lambda item: item[0])


def _merge(network: Network) -> tuple[Network, dict[int, Refusal]]:
    forms, rewriting = Forms(network, through_kinks=True), Rewriting(network)
    refusals: dict[int, Refusal] = {}
    # Rows that jump, or would.
    jumping: set[int] = set()
    rows = network.rows()
    for k, node in enumerate(network.nodes, start=1):
        jumps = _compares(node) or bool(jumping & rows[k].keys())
        # A sum of continuous parts of one value is steeper as a sum than as one function.
        if not jumps and not (node.is_identity and len(rows[k]) > 1):
            continue
        form = None if _compares(node) else forms.of_sum(k) if node.is_identity else forms.of(k)
        activation = None
        if form is not None and form.compares:
            try:
                activation = _activation(form)
            except Refusal as refusal:
                refusals |= {k: refusal} if jumps else {}
        if form is not None and activation is not None:
            rewriting.replace(k, Pointwise(activation, node.target), forms.row(form, node.target))
        elif jumps:
            jumping.add(k)
    return rewriting.result(), refusals


def _compares(node: object) -> bool:
    return isinstance(node, Pointwise) and isinstance(node.activation, Indicator)


def _activation(form: Form) -> Activation:
    if not form.exact:
        raise Refusal(
            "compares, and computes with numbers that had to be rounded, so nothing exact is known of it",
            "multiply by one number instead of several, or use an activation of torch",
        )
    try:
        return continuous(form.steps, form.label)
    except Refusal:
        rounded = _in_precision(form.steps)
        if rounded is None:
            raise
        return continuous(rounded, form.label)


def _in_precision(steps: Sequence[Draft]) -> list[Draft] | None:
    """The same steps with comparisons as the model rounds them, None if that is no difference."""
    found: list[Draft] = []
    changed = False
    for step in steps:
        if isinstance(step, Applied) and isinstance(step.activation, Indicator):
            f = step.activation
            changed = changed or f.rounded != f.knot
            found.append(Applied(replace(f, knot=f.rounded), step.inner))
        else:
            found.append(step)
    return found if changed else None
