"""From a model to a certificate of its Lipschitz constant."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from lipkit._runtime import no_time_limit, seconds_left, time_limit
from lipkit.bound import Bound, Metric, Rule, Scope
from lipkit.bounds._base import Method, know_products, require_method
from lipkit.bounds.auto import Auto
from lipkit.bounds.certificates.certificate import ALONE, SCOPE, Assumption, Certificate, Software
from lipkit.bounds.certificates.provenance import ModelRecord, Subject
from lipkit.bounds.certificates.region_record import RegionRecord
from lipkit.bounds.fold.dag import DAG, Product
from lipkit.bounds.fold.layer_table import LayerRow, layer_table
from lipkit.bounds.fold.liplt import LipLT
from lipkit.bounds.lipschitz import (
    Example,
    Program,
    bound_in_time,
    budget_of,
    call_of,
    default_search,
    search_fits,
    with_lower,
)
from lipkit.bounds.local.local import Local, restrict
from lipkit.bounds.local.ranges import Intervals
from lipkit.errors import ArgumentError, KindError
from lipkit.norms import InTime
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.accepted_arguments import explaining_axis_zero, split_example
from lipkit.trace.nodes.declared import Declared
from lipkit.trace.rewrites.fuse import EveryOp, Junctions, Nowhere


def certificate(
    model: Program,
    example: Example = None,
    method: Method = Auto(),
    region: Region = Everywhere(),
    *,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
) -> Certificate:
    """The bound of a model by `method` on `region`, with everything that is needed to check it again.

    Arguments as in `lipschitz`, and as there a lower bound is searched and kept beside it (`log_lower`).
    Guarantee: EXACT or UPPER, of the whole map; anything else is refused with a `KindError`.
    Cost: that of `lipschitz`, and a fold over the network for the table of layers, in what is left of a budget or a
    seventh of it.
    """
    require_method(method)
    begin = time.perf_counter()
    with torch.no_grad(), time_limit(budget_of(method)):
        with explaining_axis_zero(model, *split_example(example)):
            subject = Subject.of(model, call_of(model, example), wrt, output)
        network = subject.network
        bound = bound_in_time(network, method, region)
        seconds = time.perf_counter() - begin
        _require_certifying(bound)
        if search_fits(network):
            bound = with_lower(bound, default_search(network, bound.metric)(network.detach(), region))
        table = table_on(network, bound.metric, region, savings=False, budget=budget_of(method))
    return make_certificate(bound, subject, method, region, table, seconds)


def make_certificate(
    bound: Bound, subject: Subject, asked: Method, region: Region, table: Sequence[LayerRow], seconds: float
) -> Certificate:
    """The certificate of a bound that `asked` found for `subject` on `region` in so many seconds."""
    _require_certifying(bound)
    chosen, draws = winner(bound, asked)
    return Certificate(
        value=float(bound.value.detach()),
        log_value=float(bound.log_value.detach()),
        kind=bound.kind,
        metric=Metric(*map(float, bound.metric)),
        region=RegionRecord.of(region),
        failure=bound.failure,
        log_lower=None if bound.lower is None else float(bound.lower.log_value.detach()),
        method=chosen,
        asked=asked,
        found_by=str(chosen),
        draws=tuple(map(hex, draws)),
        cut=cut_of(chosen, subject.network),
        inputs=subject.inputs,
        model=ModelRecord.of(subject),
        table=tuple(table),
        assumptions=assumptions(subject.network),
        software=Software.here(),
        seconds=seconds,
        scope=SCOPE + (ALONE if subject.alone else "") + f" {subject.network.unchecked}".rstrip(),
    )


def _require_certifying(bound: Bound) -> None:
    if not bound.kind.certifies:
        raise KindError(f"Only exact and upper bounds can be certified, got {bound}; use a method that proves one.")
    if bound.of is not Scope.WHOLE:
        raise ArgumentError(f"A certificate holds one number for the whole map, got one for {bound.of}.")


def winner(bound: Bound, asked: Method) -> tuple[Method, tuple[int, ...]]:
    """The method that made the number, the one to run again, and what it drew.

    Where several were tried, the smallest part tells; a part without draws of its own was found by the same run.
    """
    draws = bound.draws or ()
    if isinstance(bound.method, Method):
        return bound.method, draws
    if bound.method is Rule.BEST and bound.parts:
        best = min(bound.parts, key=lambda part: float(part.log_value.detach()))
        return winner(best if best.draws is not None else replace(best, draws=draws), asked)
    return asked, draws


def cut_of(method: Method, network: Network) -> str:
    """Where linear regions were cut, said in words."""
    match method:
        case DAG(cut=None):
            # The method decides by size; what it made tells which it was.
            fused = method.fused(network)
            whole = len(DAG(cut=Nowhere()).fused(network).blocks) == len(fused.blocks)
            return str(Nowhere() if whole else Junctions())
        case DAG(cut=cut):
            return str(cut)
        case Product():
            return str(EveryOp())
        case LipLT():
            return str(Junctions())
        case Local(inner=inner):
            return cut_of(inner, network)
        case _:
            return "as the method chooses"


def table_on(
    network: Network, metric: Metric, region: Region, savings: bool, budget: float = math.inf
) -> list[LayerRow]:
    """The table of layers, on a bounded region with what each nonlinearity can receive there.

    It may take what is left of the time of a call with this `budget`, and a seventh of that in any case; layers that
    there is no time for are measured by sums of absolute values.
    """
    left = max(seconds_left(), budget / 7)
    with no_time_limit(), time_limit(left):
        if region != Everywhere():
            network = restrict(network, Intervals().prepare(network)(region))
        # As every method does before it runs.
        known = know_products(network)
        return layer_table(known, DAG(InTime(), metric=metric), savings)


def assumptions(network: Network) -> tuple[Assumption, ...]:
    """Every constant that a module declared of itself, in the order of the network."""
    return tuple(
        Assumption(
            node.path,
            f"{node.promise}{'; the same in every norm' if node.every_norm else ''}",
            float(node.promise.log_value.detach()),
        )
        for node in network.nodes
        if isinstance(node, Declared)
    )
