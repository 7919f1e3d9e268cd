"""From any torch model to the network it computes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._pytree import TreeSpec

from lipkit._runtime import evaluating, without_casts
from lipkit.errors import ArgumentError, CaptureError
from lipkit.trace.accepted_arguments import explaining_axis_zero, one_sample, require_model
from lipkit.trace.agreement import refuse_disagreement
from lipkit.trace.declared_modules import Promises, declarations, declaring_modules
from lipkit.trace.exchanged_inputs import Exchange, GraphRun
from lipkit.trace.exported_graph import Folded, fold
from lipkit.trace.lowering import Lowering, without_rule
from lipkit.trace.missing_rules import Gap, Verdict, refusal_of
from lipkit.trace.model_signature import (
    Argument,
    arguments,
    choose_inputs,
    choose_output,
    named_calls,
    place_inputs,
)
from lipkit.trace.network import Network
from lipkit.trace.nodes import MatrixProduct, OrderStatistics, Pointwise, Product, Softmax
from lipkit.trace.nodes import Node as NetworkNode
from lipkit.trace.nodes.activations.indicator import Indicator
from lipkit.trace.nodes.activations.sigmoids import TANH
from lipkit.trace.rewrites.merge_order_statistics import merge_max_min
from lipkit.trace.rewrites.spelled_attention import merge_attention, merge_masks
from lipkit.trace.rewrites.spelled_choices import jump, merge_choices
from lipkit.trace.rewrites.spelled_functions import merge_functions
from lipkit.trace.rewrites.spelled_gates import merge_gates
from lipkit.trace.rewrites.spelled_interpolation import merge_interpolations
from lipkit.trace.rewrites.spelled_normalization import merge_normalizers
from lipkit.trace.rewrites.spelled_norms import merge_norms
from lipkit.trace.sample_independence import refuse_mixing
from lipkit.trace.torch_export import (
    canonical_graph,
    export_model,
    is_composite,
    live_nodes,
    make_functional,
    refuse_mutation,
    split_up,
)

# torch.export keeps its state in the process: two threads that export at once break each other, and all later exports.
_ONE_AT_A_TIME = RLock()


def capture(
    model: nn.Module | ExportedProgram,
    *args: Any,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
    **kwargs: Any,
) -> Network:
    """The model as a `Network`, in evaluation mode, over its live parameters: one row for each operation.

    `args` and `kwargs` are an example of its inputs with a batch axis of any size; the first sample is traced, and the
    shapes of the network are those of one sample, without batch axis.

    `wrt` says what the network is a function of. None: the floating-point inputs; several of them are taken jointly,
    flattened and joined in order. A string: the name of an argument, or the path of a module (`"bert.embeddings"`),
    whose result is then the input: the way to go for token ids. A tuple of names: jointly, in this order. Inputs that
    are not selected are constants with their example values. `output` is needed if the model returns several tensors:
    a name (a key or a field) or a position.

    A weight that is computed from parameters (a parametrization) is computed once, here, in the dtype of the model
    whatever autocast says, and stays differentiable: the network is about that weight, its roundings included.
    A module with a `declared_lipschitz` becomes one node. Operations without a rule are split up by torch's own
    definitions as long as these have rules, and layers that are spelled out (a gate, a norm, attention, MaxMin) are put
    back into one node.

    Guarantee: the network is the function of real arithmetic that the model computes on one sample of these shapes;
    what cannot be proven is refused with a `CaptureError` that lists every obstacle, and a network that differs from
    the model at one of a few points is refused too (`refuse_disagreement`). Samples of a batch are tested for
    independence; of a model that raises for every batch but one, and of an exported program (`.pt2`), which may stand
    for the model and has an example of its own, nothing is said about several samples, and a certificate notes it.
    Cost: one export, about as much as a few evaluations of the model.
    """
    require_model(model)
    with _ONE_AT_A_TIME:
        return _capture(model, args, kwargs, wrt, output)


def _capture(
    model: nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wrt: str | tuple[str, ...] | None,
    output: str | int | None,
) -> Network:
    if isinstance(model, ExportedProgram):
        args, kwargs = _example(model, args, kwargs)
        with without_casts():
            prepared = _prepare(model, None, args, kwargs, wrt, output)
            network = _lower(prepared)
            return _compare(network, prepared, model.module())
    whole, (args, kwargs) = (args, kwargs), one_sample(model, args, kwargs)
    with explaining_axis_zero(model, *whole), without_casts(), evaluating(model):
        prepared = _prepare(export_model(model, args, kwargs), model, args, kwargs, wrt, output)
        network = _lower(prepared)
        refuse_mixing(model, args, kwargs, prepared.position, tuple(prepared.target.meta["val"].shape))
        return _compare(network, prepared, model)


def _example(program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    if not args and not kwargs:
        if program.example_inputs is None:
            raise ArgumentError("This exported program has no example inputs; give some, capture(program, x).")
        args, kwargs = program.example_inputs
    if program.range_constraints:
        raise CaptureError("This program has dynamic shapes; export it again with static ones and a batch of one.")
    cut_args, cut_kwargs = one_sample(program, args, kwargs)
    for node in program.graph.nodes:
        like = node.meta.get("val")
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs and isinstance(like, Tensor):
            if like.ndim and like.shape[0] != 1:
                raise CaptureError(
                    f"The program was exported with an input {node.name} of shape {tuple(like.shape)}; "
                    "export it again with a batch of one."
                )
            break
    return cut_args, cut_kwargs


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A folded graph, the nodes it starts from, and the one it ends in, which is tensor number `position` returned.

    `given` are the arguments as they flatten (`spec`); `paths` the calls whose results are among the `sources`; `known`
    the values of all that the graph is given.
    """

    given: Sequence[Argument]
    spec: TreeSpec
    paths: Sequence[str]
    known: Mapping[Node, object]
    folded: Folded
    sources: Sequence[Node]
    target: Node
    position: int
    promises: Promises
    inside: frozenset[Node]


def _prepare(
    program: ExportedProgram,
    model: nn.Module | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    wrt: str | tuple[str, ...] | None,
    output: str | int | None,
) -> Prepared:
    program = make_functional(program)
    declaring = {} if model is None else declaring_modules(model, args, kwargs)
    tried: set[OpOverload] = set()
    while True:
        refuse_mutation(program)
        graph = canonical_graph(program)
        given = arguments(program, graph, model, args, kwargs)
        chosen = choose_inputs(graph, given, wrt)
        position, target = choose_output(program, graph, output)
        known = live_nodes(program, graph) | {argument.node: argument.value for argument in given}
        folded = fold(graph, chosen, known, target)
        promises, inside = declarations(declaring, folded, target, chosen) if declaring else ({}, frozenset[Node]())
        unknown = {op for op in without_rule(folded, inside) if is_composite(op)} - tried
        if not unknown:
            spec = program.call_spec.in_spec
            assert spec is not None
            return Prepared(
                given, spec, named_calls(given, wrt), known, folded, chosen, target, position, promises, inside
            )
        # An operation without a rule may be made of operations that have one.
        tried |= unknown
        program = split_up(program, unknown)


def _lower(prepared: Prepared) -> Network:
    builder, refs = place_inputs(prepared.sources)
    lowering = Lowering(prepared.folded, builder, refs)
    lowering.run(prepared.promises, prepared.inside)
    plain = lowering.finish(prepared.target)
    network = merge_known_layers(plain)
    if _compares(network.nodes):
        k, refusal = jump(plain)
        raise refusal_of([Gap(plain.origin(k), Verdict.REFUSED, refusal.reason, refusal.remedy)])
    return network


def _compare(network: Network, prepared: Prepared, model: nn.Module) -> Network:
    """The network, with why it could not be compared with its model."""
    running = Exchange(model, prepared.given, prepared.spec, prepared.sources, prepared.paths, prepared.position)
    graph = GraphRun(prepared.folded, prepared.known, prepared.sources, prepared.target)
    with torch.no_grad():
        return replace(network, unchecked=refuse_disagreement(network, running, graph, prepared.folded.steps))


Nodes = Sequence[NetworkNode]


def _multiplies(nodes: Nodes) -> bool:
    return any(isinstance(node, Product | MatrixProduct) for node in nodes)


def _compares(nodes: Nodes) -> bool:
    return any(isinstance(node, Pointwise) and isinstance(node.activation, Indicator) for node in nodes)


def _has_tanh(nodes: Nodes) -> bool:
    return any(isinstance(node, Pointwise) and node.activation is TANH for node in nodes)


def _is_steep(nodes: Nodes) -> bool:
    return any(isinstance(node, Product | Pointwise) and bool(node.log_constant(2.0) == torch.inf) for node in nodes)


# Each pass with what a network must have for it to find anything, in the order in which they are tried.
_PASSES: tuple[tuple[Callable[[Nodes], bool], Callable[[Network], Network]], ...] = (
    (_compares, merge_choices),
    (lambda nodes: _multiplies(nodes) or _has_tanh(nodes), merge_gates),
    (_multiplies, merge_normalizers),
    (_multiplies, merge_interpolations),
    (_is_steep, merge_norms),
    (_is_steep, merge_functions),
    (lambda nodes: any(isinstance(node, Softmax) for node in nodes), merge_masks),
    (lambda nodes: any(isinstance(node, MatrixProduct) for node in nodes), merge_attention),
    (lambda nodes: sum(isinstance(node, OrderStatistics) for node in nodes) > 1, merge_max_min),
)


def merge_known_layers(network: Network) -> Network:
    """The same function with known patterns as single nodes: gates, normalisation, attention, MaxMin pairs.

    To be called on a network as it is lowered, one operation in each row, before anything is fused. Constants only
    become smaller: products, which have none on the whole space, become activations that have one. A pass that changes
    the values of the network is a defect; then the network is returned as it was.
    """
    merged = network
    for applies, rewrite in _PASSES:
        if applies(merged.nodes):
            merged = rewrite(merged)
    return merged if merged is network or have_equal_values(network, merged) else network


def have_equal_values(plain: Network, rewritten: Network) -> bool:
    """Whether two networks give the same values at random points.

    A rewriting that is wrong would make every later number wrong, the lower bounds too, because all of them read the
    same network; what torch itself was asked to compute is never wrong.
    """
    generator = torch.Generator().manual_seed(0)
    # Two scales: near zero many functions agree, far out saturated ones do.
    x = torch.randn(4, *plain.source, generator=generator, dtype=torch.float64)
    scales = torch.tensor([0.1, 1.0, 1.0, 5.0], dtype=torch.float64).reshape(-1, *(1,) * len(plain.source))
    with torch.no_grad():
        expected, found = (
            network.detach().to(torch.float64)((x * scales).to(plain.device)) for network in (plain, rewritten)
        )
    size = expected.abs().nan_to_num().amax() if expected.numel() else expected.new_zeros(())
    # The same function in another order of operations, in float64.
    return torch.allclose(found, expected, rtol=1e-6, atol=1e-8 * float(size), equal_nan=True)
