"""The constraint applied to the weights themselves, after an optimizer step."""

import torch
from torch import Tensor, nn

from lipkit.errors import UnsupportedError
from lipkit.nn.constrained import parametrized_names, sites, unchecked_geometry
from lipkit.nn.geometry import CONVOLUTIONS, TRANSPOSED, Geometry
from lipkit.nn.methods._base import Method
from lipkit.nn.precision import in_full_precision


def project(model: nn.Module, linear: Method | None = None, conv: Method | None = None) -> nn.Module:
    """Replace weights by their constrained ones, in place: w <- method(w). The model is returned.

    The other way to keep a constraint: train free weights and call this after every optimizer step, instead of
    differentiating through the method. In a plain torch model, `linear` and `conv` say what is done to nn.Linear and to
    convolutions (None: nothing). Constrained layers need no argument: their free numbers are replaced by some that give
    the same weights, so that they do not drift away.

    Guarantee: that of the method, until the weights are changed again. No gradients are recorded.
    Reference: Gouk et al. 2021; Béthune 2024, section 2.2.
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
    with torch.no_grad():
        for site in found:
            site.raw.copy_(site.constraint.right_inverse(site.constraint.compute(site.raw)))
        for (module, method), geometry in zip(plain, geometries, strict=True):
            module.weight.copy_(_constrained(module.weight, method, geometry))
    return model


def _geometry(module: nn.Module, method: Method) -> Geometry:
    if parametrized_names(module):
        raise UnsupportedError(
            f"The weight of {type(module).__name__} is computed by another parametrization, so it cannot be replaced; "
            "remove that one first (torch.nn.utils.parametrize.remove_parametrizations)."
        )
    geometry = unchecked_geometry(module)
    method.promise(geometry)
    return geometry


def _constrained(weight: Tensor, method: Method, geometry: Geometry) -> Tensor:
    return in_full_precision(lambda wide: geometry.joined(method(geometry.blocks(wide), geometry)), weight)
