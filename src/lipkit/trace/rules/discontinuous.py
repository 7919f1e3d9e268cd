"""Operations that jump, so that no rule can be written for them: why, and what to use instead."""

from collections.abc import Mapping

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_STEP = "jumps between constants, so it has no Lipschitz constant"
_FOLD = "jumps where it wraps around, so it has no Lipschitz constant"
_TRUTH = "compares values: its answer jumps, and what it selects is continuous only by luck"

# The reason why an operation of values that depend on the input is refused.
DISCONTINUOUS: Mapping[OpOverload, str] = {
    aten.sign.default: _STEP,
    aten.sgn.default: _STEP,
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
            aten.gt.Scalar,
            aten.gt.Tensor,
            aten.ge.Scalar,
            aten.ge.Tensor,
            aten.lt.Scalar,
            aten.lt.Tensor,
            aten.le.Scalar,
            aten.le.Tensor,
            aten.eq.Scalar,
            aten.eq.Tensor,
            aten.ne.Scalar,
            aten.ne.Tensor,
        ),
        _TRUTH,
    ),
}
