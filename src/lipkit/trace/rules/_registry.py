"""How an operation of torch becomes rows of a network: one pure function for each, and the samples that test it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from torch._ops import OpOverload

from lipkit.trace.builder import Ref

# Called with the builder and the arguments of the operation, of which those that depend on the input are references
# and all others plain values: (builder, *args, **kwargs). Several results are a tuple; None marks one that is refused.
# An operation may have several rules: they are tried in turn until one does not raise `Refusal`. So the product has a
# rule for a constant factor and, in another file, one for two factors that depend on the input.
Lowering = Callable[..., "Ref | tuple[Ref | None, ...]"]
R = TypeVar("R", bound=Lowering)


@final
@dataclass(frozen=True)
class Sample:
    """Arguments to try a rule on; `wrt` are the positions of the arguments that depend on the input.

    Each of these is a tensor, or a list of tensors that all depend on it.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrt: tuple[int, ...] = (0,)


@final
@dataclass(frozen=True)
class Rule:
    """What is known of one operation."""

    op: OpOverload
    lower: Lowering
    samples: Callable[[], Sequence[Sample]]


@final
class Refusal(Exception):
    """A rule meets a case it cannot prove; with the reason and what to do about it. The next rule is tried, if any."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


RULES: dict[OpOverload, list[Rule]] = {}


def lowers(*ops: OpOverload, samples: Callable[[], Sequence[Sample]]) -> Callable[[R], R]:
    """Register a function as a rule of `ops`; a rule without samples is refused by the conformance suite."""

    def register(rule: R) -> R:
        for op in ops:
            RULES.setdefault(op, []).append(Rule(op, rule, samples))
        return rule

    return register


def constant(value: object, what: str) -> Any:
    """An argument that must not depend on the input."""
    if isinstance(value, Ref):
        raise Refusal(f"{what} depends on the input", "make it a parameter or a buffer, or replace the layer")
    return value
