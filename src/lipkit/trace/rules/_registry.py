"""How an operation of torch becomes rows of a network: one pure function for each, and the samples that test it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import torch
from torch._ops import OpOverload

from lipkit.trace.network import Ref

aten = torch.ops.aten

_STEP = "jumps between constants, so it has no Lipschitz constant"
_FOLD = "jumps where it wraps around, so it has no Lipschitz constant"
_GRID = "rounds to the grid of a quantisation, which jumps: bound the model in floating point, as it was before"
_TRUTH = "compares values: its answer jumps, and what it selects is continuous only by luck"

# The reason why an operation of values that depend on the input is refused.
DISCONTINUOUS: Mapping[OpOverload, str] = {
    aten.heaviside.default: _STEP,
    aten.floor.default: _STEP,
    aten.ceil.default: _STEP,
    aten.round.default: _STEP,
    aten.round.decimals: _STEP,
    aten.trunc.default: _STEP,
    aten.fix.default: _STEP,
    aten.floor_divide.default: _STEP,
    aten.argmax.default: _STEP,
    aten.argmin.default: _STEP,
    aten.argsort.default: _STEP,
    aten.frac.default: _FOLD,
    aten.fmod.Scalar: _FOLD,
    aten.fmod.Tensor: _FOLD,
    aten.remainder.Scalar: _FOLD,
    aten.remainder.Tensor: _FOLD,
    aten.hardshrink.default: "jumps at both ends of its gap, so it has no Lipschitz constant",
    **dict.fromkeys(
        (
            aten.quantize_per_tensor.default,
            aten.quantize_per_tensor.tensor_qparams,
            aten.quantize_per_channel.default,
            aten.fake_quantize_per_tensor_affine.default,
            aten.fake_quantize_per_tensor_affine.tensor_qparams,
            aten.fake_quantize_per_tensor_affine_cachemask.default,
            aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
            aten.fake_quantize_per_channel_affine.default,
            aten.fake_quantize_per_channel_affine_cachemask.default,
            aten._fused_moving_avg_obs_fq_helper.default,
            aten.dequantize.self,
        ),
        _GRID,
    ),
    **dict.fromkeys(
        (
            aten.eq.Scalar,
            aten.eq.Tensor,
            aten.ne.Scalar,
            aten.ne.Tensor,
        ),
        _TRUTH,
    ),
}


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
    """How one operation is lowered, and the samples that test it."""

    op: OpOverload
    lower: Lowering
    samples: Callable[[], Sequence[Sample]]


RULES: dict[OpOverload, list[Rule]] = {}


def lowers(*ops: OpOverload, samples: Callable[[], Sequence[Sample]]) -> Callable[[R], R]:
    """Register a function as a rule of `ops`; a rule without samples is refused by the conformance suite."""

    def register(rule: R) -> R:
        for op in ops:
            RULES.setdefault(op, []).append(Rule(op, rule, samples))
        return rule

    return register
