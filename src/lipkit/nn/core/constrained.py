"""Weights that keep a constraint because they are computed from free numbers by a method."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize as torch_parametrize

from lipkit.bound import L2
from lipkit.errors import ArgumentError, MetricError, UnsupportedError
from lipkit.linops import Padding, Shape
from lipkit.nn.core.computed import Computed
from lipkit.nn.core.geometry import Geometry, geometry_of
from lipkit.nn.core.precision import in_full_precision, widest, worst_norm
from lipkit.nn.methods._base import WeightMethod


@final
class Constrained(Computed):
    """The parametrization of one weight: raw numbers -> method(raw).

    `geometry` is that of the layer as it was asked for, which the method is called with; `kernel` that of the weight.
    """

    def __init__(self, method: WeightMethod, geometry: Geometry) -> None:
        super().__init__()
        self.promise = method.promise(geometry)
        self.method = method
        self.geometry = geometry
        self.kernel = method.kernel_geometry(geometry)

    @property
    def free_shape(self) -> Shape:
        """The shape of the free numbers, as the parameter of the module."""
        first, *others = self.method.free_shape(self.geometry)
        return (self.geometry.groups * first, *others)

    def compute(self, *parameters: Tensor) -> Tensor:
        (raw,) = parameters
        refuse_complex(self.method, self.geometry, raw.dtype)

        def weight(wide: Tensor) -> Tensor:
            return self.geometry.join(self.method(self.geometry.blocks(wide), self.geometry))

        return in_full_precision(weight, raw)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Raw numbers whose weights are `weight`, where it keeps the constraint; near it otherwise."""
        if weight.is_meta:
            # There are no numbers, which some inverses look at.
            return weight.new_empty(self.free_shape)
        with torch.no_grad():
            wide = self.geometry.blocks(weight.to(widest(weight.dtype)))
            return self.geometry.join(self.method.inverse(wide, self.geometry)).to(weight.dtype)

    def is_feasible(self, weight: Tensor) -> bool:
        """Whether `weight` keeps the promise of the method; see `WeightMethod.is_feasible`."""
        return self.method.is_feasible(self.kernel.blocks(weight), self.kernel)

    def extra_repr(self) -> str:
        """The method and what it promises."""
        return f"{self.method}, {self.promise}"


def parametrize(module: nn.Module, name: str, method: WeightMethod) -> nn.Module:
    """Constrain the weight `name` of nn.Linear or a convolution to norm at most one; the module is returned.

    On top of torch.nn.utils.parametrize: the free numbers are module.parametrizations.<name>.original, and
    `remove_parametrizations` undoes it. The present weight is kept where it is feasible, and replaced by one near it
    otherwise. A geometry in which the method guarantees nothing is refused.

    Args:
        module: nn.Linear or a convolution of torch.
        name: The weight; only "weight" can be constrained.
        method: Computes the weight from free numbers.
    """
    geometry = unchecked_geometry(module, method)
    if name != "weight":
        raise ArgumentError(
            f"Only the weight of {type(module).__name__} is an operator that can be constrained, got {name!r}; "
            "use 'weight'."
        )
    return constrain(module, name, method, geometry)


def unchecked_geometry(module: nn.Module, method: WeightMethod) -> Geometry:
    """The geometry of a module of torch.nn, which takes any kernel and any size; refused where it matters."""
    geometry = geometry_of(module)
    own = vars(module).get("geometry")
    if isinstance(own, Geometry) and (own.series or own.size):
        way = "as a series" if own.series else "in Fourier space"
        raise UnsupportedError(
            f"The kernel of this {type(module).__name__} is applied {way}, where {method} would not bound the layer; "
            "constrain a plain torch.nn convolution, or keep the layer of lipkit.nn that it was made from."
        )
    if isinstance(method, WeightMethod) and method.kernel_geometry(geometry) != geometry:
        raise UnsupportedError(
            f"{method} makes a kernel that is applied in another way than {type(module).__name__} applies its own, or "
            f"of another size; use lipkit.nn.{type(module).__name__}(..., method={type(method).__name__}(...))."
        )
    if geometry.mode is Padding.CIRCULAR and any(s > 1 for s in geometry.stride):
        raise UnsupportedError(
            f"A circular convolution with stride {geometry.stride} keeps its constant only on sizes that the stride "
            f"divides, which {type(module).__name__} does not check; use lipkit.nn.{type(module).__name__}."
        )
    return geometry


def constrain(module: nn.Module, name: str, method: WeightMethod, geometry: Geometry) -> nn.Module:
    """Register the parametrization, with the geometry given."""
    if not isinstance(method, WeightMethod):
        raise ArgumentError(
            f"The method of {type(module).__name__} must be an instance of lipkit.nn.WeightMethod, got {method!r}; "
            "for example lipkit.nn.Bjorck()."
        )
    refuse_complex(method, geometry, getattr(module, name).dtype)
    constraint = Constrained(method, geometry)
    # "unsafe" means that torch does not compute a weight only to compare its type and shape, which are right by
    # construction: that is dear for some methods, and most free numbers are drawn anew after this.
    torch_parametrize.register_parametrization(module, name, constraint, unsafe=True)
    return module


def refuse_complex(method: WeightMethod, geometry: Geometry, dtype: torch.dtype) -> None:
    """Refuse complex free numbers of a method that is proven for real ones, and would lose the imaginary parts."""
    if not dtype.is_complex:
        return
    if not method.takes_complex or math.prod(geometry.taps) != 1 or dtype not in (torch.complex64, torch.complex128):
        what = f"a kernel with {geometry.taps} taps" if math.prod(geometry.taps) != 1 else "a matrix"
        raise UnsupportedError(
            f"{method} makes no complex weights of {what} from free numbers of {dtype}; Linear and convolutions with "
            "one tap can be complex64 or complex128 by Bjorck, Cayley, Exponential, Householder, NewtonSchulz, Polar "
            "and QR, and other layers take the real and the imaginary parts as separate features, which have the same "
            "l2 norm."
        )


@final
@dataclass(frozen=True, eq=False)
class Site:
    """One constrained weight of a model: where it is, its constraint and its free numbers."""

    path: str
    module: nn.Module
    name: str
    constraint: Constrained
    raw: nn.Parameter


def sites(model: nn.Module) -> Iterator[Site]:
    """Every constrained weight of a model, each once; a weight with further parametrizations is refused."""
    for path, module in model.named_modules():
        for name in parametrized_names(module):
            steps = module.get_submodule(f"parametrizations.{name}")
            assert isinstance(steps, torch_parametrize.ParametrizationList)
            ours = [step for step in steps if isinstance(step, Constrained)]
            if not ours:
                continue
            if len(steps) > 1:
                raise UnsupportedError(
                    f"{path}.{name} has {len(steps)} parametrizations; a constraint must be the only one, or what "
                    "follows it may break it."
                )
            yield Site(path, module, name, ours[0], steps.get_parameter("original"))


def kept_gain(layer: nn.Module) -> float:
    """The bound of the l2 norm that a layer's constraint guarantees: 1, in few digits the most that rounding makes.

    Methods for other norms promise nothing in l2, and are refused.
    """
    # Not by get_parameter: within torch.func.functional_call it is a plain tensor.
    steps = layer.get_submodule("parametrizations.weight")
    constraint, raw = steps.get_submodule("0"), steps.original
    assert isinstance(constraint, Constrained)
    assert isinstance(raw, Tensor)
    metric = constraint.method.metric(constraint.geometry)
    if metric != L2:
        # torch names the class of a parametrized module after the module's own.
        name = type(layer).__name__.removeprefix("Parametrized")
        raise MetricError(
            f"{name} with {constraint.method} has constant 1 in {metric}, which says nothing in l2; use it where that "
            "metric is meant, or a method for l2."
        )
    return worst_norm(constraint.kernel.shape, raw.dtype)


def is_constrained(module: nn.Module, name: str) -> bool:
    """Whether a weight is what a method makes of free numbers, and nothing comes after it."""
    if not torch_parametrize.is_parametrized(module, name):
        return False
    steps = list(module.get_submodule(f"parametrizations.{name}").children())
    return len(steps) == 1 and isinstance(steps[0], Constrained)


def parametrized_names(module: nn.Module) -> list[str]:
    """The tensors of a module that are parametrized, by whomever."""
    if not torch_parametrize.is_parametrized(module):
        return []
    return [name for name, _ in module.get_submodule("parametrizations").named_children()]
