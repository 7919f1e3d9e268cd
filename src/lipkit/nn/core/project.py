"""The constraint applied to the weights themselves, after an optimizer step."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lipkit.bound import L2
from lipkit.errors import NonFiniteError, UnsupportedError
from lipkit.nn.core.constrained import Constrained, parametrized_names, refuse_complex, sites, unchecked_geometry
from lipkit.nn.core.geometry import CONVOLUTIONS, TRANSPOSED, Geometry
from lipkit.nn.core.precision import rooms, uncast, unit_of, widest
from lipkit.nn.methods._base import Blocks, WeightMethod
from lipkit.rounding.slacks import FLOAT32_ROUNDINGS_16

# A method that has not converged is applied again at most so often: 8 Björck steps reach from 1/58 to 1.
_TRIES = 16
# Free numbers that differ by less, relative to their size, have not drifted; some inverses are no sharper than that.
_ALIKE = 2.0**-20
# The part of a room that is left for the rounding of float64 numbers.
_SPARE = 2.0**-6


def project(model: nn.Module, linear: WeightMethod | None = None, conv: WeightMethod | None = None) -> nn.Module:
    """Replace weights by ones that a method can make, in place: w <- method(inverse(w)). The model is returned.

    The other way to keep a constraint: train free weights and call this after every optimizer step, instead of
    differentiating through the method. In a plain torch model, `linear` and `conv` say what is done to nn.Linear and to
    convolutions (None: nothing). Constrained layers need no argument: their free numbers are replaced by some that give
    the same weights, so that they do not drift away.

    Numbers that are up to rounding what they would be replaced by are left as they are, so a second call changes
    nothing. Of a plain weight that is also a proof: with c = method(inverse((1 + r) w)), of norm at most one,
        ||w|| <= (||c|| + ||(1 + r) w - c||) / (1 + r) <= 1   where   ||(1 + r) w - c|| <= r.

    Guarantee: that of the method, for the weights as stored, until they are changed again. No gradients are recorded.
    Cost: two calls of the method in float64 for a weight that is changed, one for a weight that is not.
    Limit: where a method jumps (QR of a singular matrix in bfloat16) a second call may change weights again.
    Reference: Gouk et al. 2021; Béthune 2024, section 2.2.

    Args:
        model: A model, changed in place.
        linear: Method for plain nn.Linear; None leaves them alone.
        conv: Method for plain convolutions; None leaves them alone.
    """
    found = list(sites(model))
    constrained = {site.module for site in found}
    plain = [
        (module, method)
        for module in model.modules()
        for kinds, method in (((nn.Linear,), linear), ((*CONVOLUTIONS, *TRANSPOSED), conv))
        if method is not None and isinstance(module, kinds) and module not in constrained
    ]
    if not found and not plain:
        raise UnsupportedError(
            "There is nothing to project: the model has no constrained weights; say what to do with plain ones, "
            "for example project(model, linear=Bjorck(), conv=AOL())."
        )
    # All refusals come before the first change.
    geometries = [_geometry(module, method) for module, method in plain]
    for numbers in (*(site.raw for site in found), *(module.weight for module, _ in plain)):
        if not bool(numbers.isfinite().all()):
            raise NonFiniteError(
                f"A weight of shape {tuple(numbers.shape)} has NaN or infinite entries, so there is none near it that "
                "keeps a constraint; repair the weights first."
            )
    with torch.no_grad():
        for site in found:
            with uncast(site.raw.device.type):
                site.raw.copy_(_free_numbers(site.raw, site.constraint))
        for (module, method), geometry in zip(plain, geometries, strict=True):
            with uncast(module.weight.device.type):
                module.weight.copy_(_weight(module.weight, method, geometry))
    return model


def _geometry(module: nn.Linear | nn.modules.conv._ConvNd, method: WeightMethod) -> Geometry:
    if parametrized_names(module):
        raise UnsupportedError(
            f"The weight of {type(module).__name__} is computed by another parametrization, so it cannot be replaced; "
            "remove that one first (torch.nn.utils.parametrize.remove_parametrizations)."
        )
    geometry = unchecked_geometry(module, method)
    refuse_complex(method, geometry, module.weight.dtype)
    method.promise(geometry)
    return geometry


def _free_numbers(raw: Tensor, constraint: Constrained) -> Tensor:
    """Numbers that are what the inverse of the method makes of their weights, which hold whatever they are."""
    method, geometry = constraint.method, constraint.geometry
    room = _ALIKE + 4 * unit_of(raw.dtype)

    def advance(numbers: Tensor) -> tuple[Tensor, bool]:
        wide = geometry.blocks(numbers.to(widest(numbers.dtype)))
        made = method.without_drift(wide, geometry)
        if torch.linalg.vector_norm(made - wide) <= room * (1 + torch.linalg.vector_norm(wide)):
            return numbers, True
        return geometry.join(made).to(numbers.dtype), False

    return _repeat(raw, advance)


def _weight(weight: Tensor, method: WeightMethod, geometry: Geometry) -> Tensor:
    """A weight that the method leaves alone, made smaller by as little as that takes."""
    first, *others = rooms(geometry.shape, weight.dtype)

    def step(numbers: Tensor, room: float) -> tuple[Tensor, bool]:
        wide = geometry.blocks(numbers.to(widest(numbers.dtype)) * (1 + room))
        made = method(method.inverse(wide, geometry), geometry)
        most = room * (1 - _SPARE)
        there = _size(wide - made, method, geometry, weight.dtype, most) <= most
        return (numbers if there else geometry.join(made / (1 + room)).to(numbers.dtype)), there

    def advance(numbers: Tensor) -> tuple[Tensor, bool]:
        after = numbers
        for room in (first, *others):
            after, there = step(numbers, room)
            if there:
                return numbers, True
            if step(after, room)[1]:
                # From what more room led to, less may be enough.
                return after, room == first
        return after, False

    return _repeat(weight, advance)


def _repeat(numbers: Tensor, advance: Callable[[Tensor], tuple[Tensor, bool]]) -> Tensor:
    """The result of `advance`, called until its second value says that a further call would change nothing."""
    for _ in range(_TRIES):
        numbers, there = advance(numbers)
        if there:
            break
    return numbers


def _size(difference: Blocks, method: WeightMethod, geometry: Geometry, dtype: torch.dtype, enough: float) -> float:
    """A bound of the norm in which the method works, sharp where rounding is coarse."""
    if method.metric(geometry) != L2 or unit_of(dtype) > FLOAT32_ROUNDINGS_16:
        return method.norm_on_every_size(difference, geometry, enough)
    # A convolution is a sum over taps, each of at most the Frobenius norm of its matrix.
    sizes = torch.linalg.vector_norm(difference.flatten(1), dim=1)
    return float(sizes.max()) * math.sqrt(math.prod(geometry.taps))
