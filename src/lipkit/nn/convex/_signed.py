"""The base of methods whose weights have no negative entries."""

from lipkit.errors import ArgumentError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Blocks, WeightMethod


class NonNegativeMethod(WeightMethod):
    """A method whose weights have no negative entries, so that their layers keep convexity."""

    def is_feasible(self, weight: Blocks, geometry: Geometry) -> bool:
        """Whether no entry is negative, and the norm is at most 1 + 1e-6."""
        return bool((weight.detach() >= 0).all()) and super().is_feasible(weight, geometry)


def keeps_convexity(method: object, name: str) -> NonNegativeMethod:
    """The method, if its weights have no negative entries."""
    if not isinstance(method, NonNegativeMethod):
        raise ArgumentError(
            f"{name}.method must make weights without negative entries, or the network is not convex; got "
            f"{method!r:.60}; use Stochastic(), Orthostochastic() or NonNegative()."
        )
    return method
