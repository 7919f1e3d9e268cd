"""The base of linear layers with a constrained weight: how it is drawn, and which constant the layer declares."""

import torch
from torch import Tensor, nn

from lipkit.bound import L2, Bound, Kind
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Shape
from lipkit.nn.core.constrained import Constrained, constrain, is_constrained, kept_gain
from lipkit.nn.core.geometry import Geometry, geometry_of
from lipkit.nn.core.precision import dtype_in_use, worst_norm
from lipkit.nn.methods._base import Promise, WeightMethod


class ConstrainedLayer(nn.Module):
    """A linear layer whose `weight` is constrained: initialisation and declared constant."""

    geometry: Geometry
    method: WeightMethod
    weight: Tensor

    @property
    def gain(self) -> float:
        """1 in single and double precision: the method keeps the l2 norm of the weight at most one, rounding counted.

        In bfloat16 and float16, the most that rounding can make of it. Methods for other norms promise nothing in l2.
        """
        if not self._keeps_its_method():
            raise UnsupportedError(
                f"The weight of {type(self).__name__} is no longer what {self.method} made of it: its parametrization "
                "was removed or exchanged, or another was added; `declared_lipschitz` proves the weight as it is."
            )
        return kept_gain(self)

    @property
    def covers_complex(self) -> bool:
        """True: a method makes complex weights only where it proves their norm over the complex numbers."""
        return True

    @property
    def is_isometry(self) -> bool:
        """Whether the method promises that every singular value is 1, up to rounding, on every size it takes.

        Then the layer keeps all lengths where it has outputs enough, and otherwise those of all gradients. False where
        the geometry allows a contraction only, as zero padding does for most methods, and where the parametrization was
        removed or exchanged.
        """
        return self._keeps_its_method() and self._constraint().promise is Promise.ISOMETRY

    def constrain_weight(self, method: WeightMethod) -> None:
        """Constrain the weight, and draw it anew; the last step of a constructor."""
        if not isinstance(method, WeightMethod):
            name = type(self).__name__
            example = "AOC()" if isinstance(self, nn.modules.conv._ConvNd) else "Bjorck()"
            raise ArgumentError(
                f"{name}.method must be a method that keeps the weight, such as {example}, got {method!r:.60}; leave "
                f"it out for the default, or use torch.nn.{name} for a plain weight."
            )
        self.method = method
        asked = geometry_of(self)
        self.geometry = method.kernel_geometry(asked)
        if self.geometry != asked:
            # Refused before anything is changed.
            method.promise(asked)
            self.take_kernel(self.geometry)
        with torch.no_grad():
            # Zeros, which every method takes: the numbers are drawn afterwards, and some inverses are costly.
            self.weight.zero_()
        constrain(self, "weight", method, asked)
        self.reset_parameters()

    def take_kernel(self, kernel: Geometry) -> None:
        """Become a layer with a kernel of another size than was asked for: convolutions can."""
        raise UnsupportedError(f"{self.method} makes kernels of convolutions; {type(self).__name__} has none.")

    def reset_parameters(self) -> None:
        """Draw the weight anew from the method's own start, as the constructor does; the bias starts at zero.

        Drawn biases cost four to nine points of accuracy on MNIST (docs/benchmarks.md): they are as large as the
        differences that layers of norm one leave between samples. On the meta device there is nothing to draw: call
        this after `to_empty`.
        """
        if "method" not in vars(self):
            # The constructor of torch's class calls this before there is a constraint.
            super().reset_parameters()  # pyright: ignore[reportAttributeAccessIssue] - of torch's class behind this one
            return
        if not self._keeps_its_method():
            raise UnsupportedError(
                f"The weight of {type(self).__name__} is no longer what {self.method} made of it, so its start would "
                "not be its own; build a new layer."
            )
        if self._raw().is_meta:
            return
        with torch.no_grad():
            raw, asked = self._raw(), self._constraint().geometry
            drawn = self.method.draw_complex(asked) if raw.dtype.is_complex else self.method.draw(asked)
            raw.copy_(self.geometry.join(drawn))
            if isinstance(self.bias, nn.Parameter):
                self.bias.zero_()

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """The norm of the weight on one input of `in_shape`: 1 where the method proves that, a proof in float64 else.

        A weight that its method makes in float32 or float64 needs no other proof in l2. In fewer digits, in other
        norms, and where the weight is no longer the method's, it is measured by the norm that is sharp for the method;
        `gain` counts if it is less.
        Guarantee: EXACT or UPPER. Gradient: reaches the free numbers where the weight is looked at.
        """
        promised = self._promised_norm()
        if promised is None:
            return self.method.norm(self.geometry)(self.geometry.operator(self.weight, in_shape))
        stated = Bound.from_value(promised, Kind.UPPER, f"{self.method}, by construction")
        if promised <= 1:
            # Refuses the shapes that the layer refuses, without computing the weight.
            self.geometry.operator(self._raw().new_empty(self.geometry.weight_shape), in_shape)
            return stated
        return self.method.norm(self.geometry)(self.geometry.operator(self.weight, in_shape)).best(stated)

    def _promised_norm(self) -> float | None:
        """The bound of the l2 norm that the method guarantees in the type in use; None if it guarantees none."""
        if not self._keeps_its_method() or self.method.metric(self.geometry) != L2:
            return None
        raw = self._raw().detach()
        # A method makes no weight from NaN or infinite numbers, so it promises nothing for them.
        return worst_norm(self.geometry.shape, dtype_in_use(raw)) if bool(torch.isfinite(raw).all()) else None

    def _keeps_its_method(self) -> bool:
        """Whether the weight is what this method makes of free numbers: its parametrization may be exchanged."""
        if not is_constrained(self, "weight"):
            return False
        constraint = self._constraint()
        return constraint.method == self.method and constraint.kernel == self.geometry

    def _constraint(self) -> Constrained:
        constraint = self.get_submodule("parametrizations.weight.0")
        assert isinstance(constraint, Constrained)
        return constraint

    def _raw(self) -> Tensor:
        # Not by get_parameter: within torch.func.functional_call it is a plain tensor.
        raw = self.get_submodule("parametrizations.weight").original
        assert isinstance(raw, Tensor)
        return raw


def refuse_methods(layer: nn.Module, **arguments: object) -> None:
    """Refuse a method in the place of another argument: `Linear(8, 8, Cayley())` would make it the bias."""
    for name, value in arguments.items():
        if isinstance(value, WeightMethod):
            raise ArgumentError(
                f"{type(layer).__name__}.{name} is no place for a method, got {value!r}; give it by name, as in "
                f"{type(layer).__name__}(..., method={type(value).__name__}())."
            )
