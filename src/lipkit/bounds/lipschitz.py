"""One call from a model and an example to its bound; the way to the network is the one that all others take too."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils.flop_counter import FlopCounterMode

from lipkit._runtime import Listener, Phase, fastest_seconds, report, reporting, seconds_left, time_limit
from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds._base import Method, Snapshot, require_method
from lipkit.bounds.auto import Auto
from lipkit.bounds.certificates.identity import sha256_of
from lipkit.bounds.fold.pairwise import Pairwise, PairwiseLipLT
from lipkit.bounds.lower.sampling import Sampling
from lipkit.errors import ArgumentError, BrokenCertificateError
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.freeze import frozen
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from lipkit.trace.accepted_arguments import explaining_axis_zero, one_sample, require_model, split_example
from lipkit.trace.capture import capture
from lipkit.trace.export_failures import run_error

Program = nn.Module | ExportedProgram
Model = Program | Network
Example = Tensor | tuple[Any, ...] | Mapping[str, Any] | None
Call = tuple[tuple[Any, ...], dict[str, Any]]

# The share of the time left that the bound may use; the rest is for the search of the lower bound.
_FOR_THE_BOUND = 0.8
# Forward passes that the shortest search for a lower bound takes: a Jacobian, some pairs of points, and a proof.
_SEARCH = 150
# The most values and products in the backward passes of a default search: some seconds of one core.
_VALUES, _PRODUCTS = 2**32, 2**33
# Numbers of a hash that are timed.
_HASHED = 2**18


def network_of(
    model: Model, example: Example = None, wrt: str | tuple[str, ...] | None = None, output: str | int | None = None
) -> Network:
    """The network of a model; a `Network` is returned as it is.

    Under `torch.no_grad()` computed weights are held as in `lipkit.nn.frozen`, so that what computes them is not
    traced at all: for networks of many constrained layers that is nearly all there is to trace.

    Args:
        model: a module, an exported program or a network.
        example: a tensor, a tuple of arguments, or a mapping of them by name, each with a batch axis of which the
            first sample is used; an exported program has one of its own.
        wrt: what the network is a function of, as in `capture`.
        output: which of several results it computes, as in `capture`.

    Guarantee: the same network with and without gradients. Cost: that of `capture`; without gradients one evaluation
    of one sample besides.
    """
    if isinstance(model, Network):
        return model
    with explaining_axis_zero(model, *split_example(example)):
        return capture_call(model, call_of(model, example), wrt, output)


def call_of(model: Program, example: Example) -> Call:
    """The arguments for one sample: a tensor is the first argument, a tuple all of them, a mapping those by name.

    An exported program has an example of its own, which is used if none is given.
    """
    require_model(model)
    args, kwargs = split_example(example)
    if isinstance(model, ExportedProgram) and not args and not kwargs:
        if model.example_inputs is None:
            # Nothing to cut: `capture` refuses it, and says what to give.
            return (), {}
        args, kwargs = model.example_inputs
    return one_sample(model, args, kwargs)


def capture_call(
    model: Program, call: Call, wrt: str | tuple[str, ...] | None = None, output: str | int | None = None
) -> Network:
    """`capture` of a model on one sample, with its computed weights held where nobody can ask for gradients."""
    args, kwargs = call
    if not isinstance(model, ExportedProgram) and not torch.is_grad_enabled() and _computes_weights(model):
        with frozen(model):
            # A run, because it also shows which weights are computed from several sets of parameters: tracing does not.
            if run_error(model, *call) is None:
                return capture(model, *args, wrt=wrt, output=output, **kwargs)
    return capture(model, *args, wrt=wrt, output=output, **kwargs)


def _computes_weights(model: nn.Module) -> bool:
    return any(isinstance(part, Computed) for part in model.modules())


def lipschitz(
    model: Model,
    example: Example = None,
    method: Method = Auto(),
    region: Region = Everywhere(),
    *,
    lower: Method | None = None,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
    progress: Listener | None = None,
) -> Bound:
    """The best Lipschitz constant of any model that `method` can prove on `region`, with a lower bound beside it.

        ||f(x) - f(y)|| <= bound.value ||x - y||   for all x, y of the region,

    for one sample, in evaluation mode, in real arithmetic. The true constant lies between the bound and `bound.lower`.
    The bound is differentiable in the model's parameters where its method is.

    Args:
        model: any torch module, an exported program, or a `Network`.
        example: a tensor, a tuple of arguments or a mapping of them by name, each with a batch axis of which the first
            sample is used; a `Network` or an exported program needs none.
        method: how the bound is found; `Auto(budget=...)` takes the best of several within a time in seconds.
        region: where both points lie, a `Ball` or a `Box` in the input space of one sample; by default everywhere.
        lower: how the lower bound is searched, by default `Sampling`.
        wrt: which argument, or which module's result, the constant is with respect to, as in `capture`.
        output: which of several results it is the constant of, as in `capture`.
        progress: called with a `Progress` whenever a phase or a method begins, for example `print`; what it raises
            ends the call.

    Guarantee: the kind of the bound; nothing but EXACT and UPPER certifies. Unknown operations are refused.
    Cost: the budget of `Auto` (60 s) for the whole call; with another method what that says, and for the lower bound a
    thousand points of a small model, as many of a larger one as some seconds of one core pay for. Capture itself cannot
    be cut short; 15 % of the budget are left for the bound in any case. If the budget is too short for a lower bound or
    for all methods, `bound.note` says so; if it is too short for the hash of the weights, that is taken when it is
    needed.
    """
    require_method(method)
    with reporting(progress), time_limit(budget_of(method)):
        report(Phase.CAPTURE)
        network = network_of(model, example, wrt, output)
        bound = _identified(bound_in_time(network, method, region), model, network)
        if not bound.kind.certifies:
            return bound
        if lower is None and not search_fits(network):
            return without_lower(bound)
        search = default_search(network, bound.metric) if lower is None else lower
        report(Phase.LOWER, search)
        below = search(network.detach(), region)
    if lower is not None and below.kind is not Kind.LOWER:
        raise ArgumentError(f"`lower` must be a method that gives lower bounds, got {below}.")
    return with_lower(bound, below)


def budget_of(method: Method) -> float:
    """The seconds that a whole call with this method may take: capture, bound and lower bound."""
    return method.budget if isinstance(method, Auto) else math.inf


def bound_in_time(network: Network, method: Method, region: Region) -> Bound:
    """The bound by a method that leaves a fifth of the time for the search of a lower bound."""
    with time_limit(_FOR_THE_BOUND * seconds_left()):
        if not isinstance(method, Auto):
            report(Phase.BOUND, method)
        return method(network, region)


def search_fits(network: Network) -> bool:
    """Whether there is time for the shortest search of a lower bound. Cost: two passes, if a call has a limit."""
    left = seconds_left()
    return left == math.inf or (left > 0 and _SEARCH * pass_seconds(network) <= seconds_left())


def pass_seconds(network: Network) -> float:
    """Seconds for one sample through the network, forward, in float64: twice those in float32."""
    once = _one_pass(network)
    return (2 if _is_single(network) else 1) * fastest_seconds(once)


def _is_single(network: Network) -> bool:
    return any(t.dtype == torch.float32 for t in network.tensors())


def _one_pass(network: Network) -> Callable[[], object]:
    """One sample through the network, in the type of its weights: a copy of large ones in float64 would take longer."""
    dtype = torch.float32 if _is_single(network) else torch.float64
    x = torch.zeros(1, *network.source, dtype=dtype, device=network.device)
    plain = network.detach().to(dtype)

    def run() -> object:
        with torch.no_grad():
            return plain(x).sum().item()

    return run


def _products_of_a_pass(network: Network) -> int:
    """Products of numbers in a forward pass, also those inside of modules that declare their constant."""
    with FlopCounterMode(display=False) as counter:
        _one_pass(network)()
    return counter.get_total_flops() // 2


def hash_seconds(network: Network) -> float:
    """Seconds for a hash of all numbers in the network, in float64."""
    entries = sum(t.numel() for t in network.tensors())
    if entries <= _HASHED:
        return 0.0
    sample = torch.zeros(_HASHED)
    # Twice, because large copies take new memory each time.
    return 2 * fastest_seconds(lambda: sha256_of(sample.to(torch.float64))) * entries / _HASHED


def without_lower(bound: Bound) -> Bound:
    """The bound, which says that the time was over before a lower one was searched."""
    return replace(bound, note=f"{bound.note} There was no time to search for a lower bound.".lstrip())


def with_lower(bound: Bound, below: Bound) -> Bound:
    """An upper bound with a lower one beside it, the better of its own and `below`; unchanged if none is proven.

    Two that contradict each other are refused with a `BrokenCertificateError`.
    """
    # An estimate says that float64 could not prove what the search found.
    if below.kind is not Kind.LOWER or not bound.kind.certifies:
        return bound
    if below.of is not bound.of:
        if bound.of is not Scope.WHOLE:
            return bound
        # One number for a batch of regions: what is below the constant on one of them is below it.
        below = replace(below, log_value=below.log_value.max(), of=Scope.WHOLE, state=None)
    if bound.lower is not None and bool((bound.lower.log_value > below.log_value).all()):
        below = bound.lower
    if bool((below.log_value > bound.log_value).any()):
        raise BrokenCertificateError(
            f"A lower bound of {float(below.value.detach().max()):.6g} disproves the bound {bound}. If a module "
            "declares its constant (`declared_lipschitz`, `gain`), it does not have it; otherwise lipkit is wrong, "
            "please report it with the model."
        )
    return replace(bound, lower=below)


def _identified(bound: Bound, model: Model, network: Network) -> Bound:
    """The bound with a hash of the weights as they are now, unless this is a step of training or takes too long."""
    trained = bound.log_value.requires_grad and (not isinstance(model, nn.Module) or model.training)
    if trained or not isinstance(bound.subject, Snapshot):
        return bound
    left = seconds_left()
    if left < math.inf and hash_seconds(network) > left:
        return bound
    return replace(bound, subject=bound.subject.compute_hash())


def default_search(network: Network, metric: Metric) -> Method:
    """The search for a lower bound that costs about as much for a large network as for a small one."""
    return Sampling(_points(network), metric=metric)


def _points(network: Network) -> int:
    """How many points to sample: each costs up to a backward pass for every output, through all products and values.

    One for a network without activations, whose Jacobian is the same everywhere.
    """
    if all(node.is_identity for node in network.nodes):
        return 1
    passes = min(64, math.prod(network.target))
    values = sum(math.prod(network.shape_of(j)) for j in range(network.sink))
    products = _products_of_a_pass(network)
    return max(1, min(1024, _VALUES // (values * passes + 1), _PRODUCTS // (products * passes + 1)))


def pairwise(
    model: Model,
    example: Example = None,
    method: Pairwise = PairwiseLipLT(),
    region: Region = Everywhere(),
    *,
    wrt: str | tuple[str, ...] | None = None,
    output: str | int | None = None,
) -> Bound:
    """Constants of all differences z_a - z_b of a classifier's outputs: symmetric, zero diagonal, differentiable.

    A point x with label y keeps its label within min_b (z_y - z_b)(x) / K_yb. Arguments as in `lipschitz`.
    Guarantee and cost: those of the method.
    """
    require_method(method, Pairwise)
    network = network_of(model, example, wrt, output)
    found = _identified(method(network, region), model, network)
    if found.of is not Scope.PAIR:
        raise ArgumentError(f"{method} gives one constant, not one for each pair; give a method like PairwiseLipLT().")
    return found
