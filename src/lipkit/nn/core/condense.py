"""Constrained models as plain ones, with the weights they compute."""

import copy
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, UnsupportedError
from lipkit.linops import Padding
from lipkit.nn.core.constrained import Constrained, parametrized_names, sites
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import narrow_weight, store
from lipkit.nn.layers._constrained_layer import ConstrainedLayer
from lipkit.nn.layers.size_checked import OWN_FORWARD, HasKernel

# Types in which a method's own result is proven already; for others rounding is, after the fact.
_PROVEN = (torch.float32, torch.float64, torch.complex64, torch.complex128)
# A rounded weight is shrunk at most so often.
_TRIES = 8
# Attributes that our layers have and torch's do not; layers that check the size of their input keep the first.
_OWN = ("geometry", "method")


@runtime_checkable
class Condensable(Protocol):
    """A layer with computed weights that can write itself with plain ones."""

    def to_plain(self, dtype: torch.dtype | None = None) -> nn.Module:
        """The same function, with the tensors it computes as parameters, proven as they are in `dtype`."""
        ...


def condense(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy of the model in which constrained layers are those of torch.nn, with the weights they computed.

    It computes the same function, costs what a plain model costs, and can be pickled, saved and exported; nothing keeps
    its weights constrained from now on. Two kinds are not quite torch's: circular convolutions with a stride go on
    refusing sizes that the stride does not divide, and exponentials (`SOC`) stay chains of convolutions. With `dtype`
    all floating tensors are converted. Weights in bfloat16 or float16 are proven after rounding, for inputs of every
    size: the norm of the rounded weight is bounded in float64, and the weight is shrunk until that bound is at most
    one.

    Guarantee: every weight has the constant its layer had.

    Args:
        model: A model with constrained layers; it is copied.
        dtype: Type of all floating tensors of the copy; None keeps them.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ArgumentError(f"Weights are floating-point numbers, got dtype {dtype}; use torch.bfloat16, for example.")
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.detach()).all()):
            raise NonFiniteError(
                f"The parameter {name} of the model is NaN or infinite somewhere, so there is no weight to condense; "
                "repair it, or load an earlier checkpoint."
            )
        if dtype is not None and parameter.dtype.is_complex:
            raise UnsupportedError(
                f"The parameter {name} of the model is complex, and {dtype} would lose its imaginary part; condense "
                "without a dtype."
            )
    plain = copy.deepcopy(model)
    weights: dict[nn.Module, dict[str, nn.Parameter]] = {}
    for site in sites(plain):
        weight = _proven_weight(site.constraint, site.raw, site.raw.dtype if dtype is None else dtype)
        # Contiguous, whatever the method left: file formats refuse anything else.
        weights.setdefault(site.module, {})[site.name] = nn.Parameter(weight.contiguous(), site.raw.requires_grad)
    plain = _replace_layers(plain, weights, dtype, {})
    return plain if dtype is None else plain.to(dtype)


def _proven_weight(constraint: Constrained, raw: Tensor, dtype: torch.dtype) -> Tensor:
    geometry, method = constraint.geometry, constraint.method
    wide = raw.detach().to(torch.promote_types(raw.dtype, torch.float32))
    weight = geometry.join(method(geometry.blocks(wide), geometry))
    if dtype in _PROVEN:
        # Wider weights are proven as they are; from float64 to float32 rounding has to be made room for.
        blocks = constraint.kernel.blocks(weight)
        return geometry.join(store(blocks, dtype)) if weight.dtype != dtype == torch.float32 else weight.to(dtype)
    factor, excess = 1.0, 1.0
    for attempt in range(_TRIES):
        found = narrow_weight(weight * factor, dtype)
        excess = method.norm_on_every_size(geometry.blocks(found.to(torch.float64)), constraint.kernel, 1.0)
        if excess <= 1:
            return found
        # More than the excess, and more each time: rounded numbers move in steps, and may not move at all by less.
        factor /= 1 + 2 ** (attempt + 1) * (excess - 1)
    raise NotProvenError(
        f"After rounding to {dtype} the norm of a weight of shape {tuple(raw.shape)} could not be proven at most 1 "
        f"(last bound {excess:.6g}); condense to float32."
    )


def _replace_layers(
    module: nn.Module,
    weights: dict[nn.Module, dict[str, nn.Parameter]],
    dtype: torch.dtype | None,
    done: dict[nn.Module, nn.Module],
) -> nn.Module:
    """The module with constrained layers replaced by torch's, also below; one that is used twice stays one."""
    if module in done:
        return done[module]
    if module in weights:
        made = _plain(module, weights[module])
    elif isinstance(module, Condensable):
        made = module.to_plain(dtype)
    else:
        made = module
    made.training = module.training
    done[module] = made
    # named_children would leave out the further places of a part that stands here twice.
    for name, child in list(made._modules.items()):
        if child is not None:
            made._modules[name] = _replace_layers(child, weights, dtype, done)
    return made


def _plain(layer: nn.Module, weights: dict[str, nn.Parameter]) -> nn.Module:
    """The same layer without parametrizations: of torch's class if it is one of ours, of its own class otherwise.

    A circular convolution with a stride goes on refusing the sizes on which it has no constant.
    Written out because removing a parametrization changes the class, which copies of a layer share.
    """
    # torch derives a class for each parametrized module from the module's own.
    own = type(layer).__bases__[0]
    ours = isinstance(layer, ConstrainedLayer)
    kind = next(base for base in own.__mro__ if not issubclass(base, ConstrainedLayer | HasKernel)) if ours else own
    dropped = _OWN if ours else ()
    if isinstance(layer, HasKernel) and _has_its_own_forward(layer.geometry):
        kind, dropped = OWN_FORWARD[kind], ("method",)
    made = object.__new__(kind)
    nn.Module.__init__(made)
    state = {name: value for name, value in vars(layer).items() if name not in dropped}
    left = set(parametrized_names(layer)) - weights.keys()
    if left:
        raise UnsupportedError(
            f"{type(layer).__name__} has other parametrizations, of {sorted(left)}; remove them first."
        )
    vars(made).update(state)
    made._parameters = {**weights, **layer._parameters}
    made._modules = {name: part for name, part in layer._modules.items() if name != "parametrizations"}
    return made


def _has_its_own_forward(geometry: Geometry) -> bool:
    """Whether torch's layer computes something else, or accepts a size that `Geometry.check_size` may refuse.

    These are series, kernels for images of one size, transposed kernels on circles, and padded circles walked in steps.
    """
    if geometry.size or geometry.series or (geometry.transposed and geometry.mode is Padding.CIRCULAR):
        return True
    steps = zip(geometry.stride, geometry.padding, strict=True)
    return geometry.mode is Padding.CIRCULAR and any(s > 1 and any(sides) for s, sides in steps)
