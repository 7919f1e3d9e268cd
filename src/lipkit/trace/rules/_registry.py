"""How an operation of torch becomes rows of a network: one pure function for each, and the samples that test it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from torch._ops import OpOverload

from lipkit.trace.builder import Ref

# Called with the builder and the arguments of the operation, of which those that depend on the input are references
# and all others plain values: (builder, *args, **kwargs). Several results are a tuple; None marks one that is refused.
Lowering = Callable[..., "Ref | tuple[Ref | None, ...]"]


@final
@dataclass(frozen=True)
class Sample:
    """Arguments to try a rule on; `wrt` are the positions of the arguments (tensors) that depend on the input."""

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
    """A rule meets a case it cannot prove; with the reason and what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


RULES: dict[OpOverload, Rule] = {}


def lowers(*ops: OpOverload, samples: Callable[[], Sequence[Sample]]) -> Callable[[Lowering], Lowering]:
    """Register a function as the rule of `ops`; a rule without samples is refused by the conformance suite."""

    def register(rule: Lowering) -> Lowering:
        for op in ops:
            assert op not in RULES, f"two rules for {op}"
            RULES[op] = Rule(op, rule, samples)
        return rule

    return register


def constant(value: object, what: str) -> Any:
    """An argument that must not depend on the input."""
    if isinstance(value, Ref):
        raise Refusal(f"{what} depends on the input", "make it a parameter or a buffer, or replace the layer")
    return value
