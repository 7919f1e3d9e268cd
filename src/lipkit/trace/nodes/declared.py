"""A module that states its own constant."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lipkit.bound import Bound
from lipkit.errors import UnsupportedError
from lipkit.linops import Shape
from lipkit.regions import Reach
from lipkit.rounding.float64 import log_norm_ratio, log_product
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS, ROUNDINGS_8192
from lipkit.trace.nodes._base import Node

# Relative error of a pass through a module in float32, of up to four thousand roundings one after the other.
_FLOAT32_PASS = 2.0**-12
# How far off an evaluation may be, relative to the largest numbers in and out. A module that converts to float32 inside
# does so in whatever type it is called.
_TRUSTED = {torch.float64: MILLIONS_OF_ROUNDINGS, torch.float32: _FLOAT32_PASS}


@runtime_checkable
class DeclaresLipschitz(Protocol):
    """A module that knows its constant better than its graph shows (orthogonal layers, for example)."""

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        """An EXACT or UPPER bound, everywhere, from l_p to l_p, for one input of `in_shape` (no batch axis).

        Where nothing can be promised (any more), UnsupportedError: then what the module computes is read instead.
        """
        ...


@runtime_checkable
class DeclaresInEveryNorm(DeclaresLipschitz, Protocol):
    """A module that says whether its declaration holds for every p, whatever p it names."""

    @property
    def every_norm(self) -> bool:
        """Whether the constant from l_p to l_p is at most the declared one for every p."""
        ...


@runtime_checkable
class DeclaresOfComplex(DeclaresLipschitz, Protocol):
    """A module that says whether its declaration, in l2, also holds where it is called with complex numbers."""

    @property
    def covers_complex(self) -> bool:
        """Whether the constant between complex values, as pairs of real numbers, is at most the declared one."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Declared(Node):
    """A module call that is believed: Lip = the constant the module declared, whatever its operations are.

    `fn` is called with one input of shape `size` and `parameters`, and gives one output. `promise` is the declaration
    and `path` the module that made it; a certificate lists both as an assumption. In another norm than that of the
    promise the constant follows from the norms' ratios, unless it holds in `every_norm`:

        K_p = K_q n^max(0, 1/q - 1/p) m^max(0, 1/p - 1/q),   n entries in, m out.
    """

    fn: Callable[..., Tensor]
    size: Shape
    result: Shape
    parameters: tuple[Tensor, ...]
    promise: Bound
    path: str
    # Not a part of what the node computes, nor of its declaration in the declared norm.
    every_norm: bool = field(default=False, compare=False)

    @property
    def shape(self) -> Shape:
        return self.size

    @property
    def target(self) -> Shape:
        return self.result

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        return self._images(z).to(z.dtype)

    def _images(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The images, in the type that the module's own conversions leave."""
        wide = {False: z.dtype, True: z.dtype.to_complex()}
        parameters = [
            t.to(z.device, wide[t.is_complex()]) if t.is_floating_point() or t.is_complex() else t
            for t in self.parameters
        ]
        if not len(z):
            return z.new_zeros((0, *self.result))
        if len(z) == 1:
            return self.fn(z[0], *parameters)[None]
        # Its operations were recorded for one sample, so a batch goes through them under vmap, not as it is.
        return torch.func.vmap(self.fn, (0, *(None for _ in parameters)))(z, *parameters)

    @property
    def roundings(self) -> float:
        """Half of the digits or so of every entry, relative to the largest; evaluates it once."""
        device = next((t.device for t in self.parameters), torch.device("cpu"))
        image = self._images(torch.zeros((1, *self.size), dtype=torch.float64, device=device))
        return self._rounding_share * 2.0**53 * image.numel() ** 0.5

    @cached_property
    def _rounding_share(self) -> float:
        """How far an entry may be off, by the narrowest numbers that occur between input and output."""
        device = next((t.device for t in self.parameters), torch.device("cpu"))
        with torch.no_grad(), _Watching() as seen:
            image = self._images(torch.zeros((1, *self.size), dtype=torch.float64, device=device))
        dtype = max(seen.narrowest, image.dtype, key=lambda one: torch.finfo(one).eps)
        if dtype not in _TRUSTED:
            raise UnsupportedError(
                f"{self} computes in {dtype}, in which the image of a point is not known well enough for a "
                "bound on a region; convert the model to float32 or float64."
            )
        return _TRUSTED[dtype]

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        q = self.promise.metric.p_in
        if p == q or self.every_norm:
            return self.promise.log_value
        # One of them is 0.
        ratio = log_norm_ratio(q, p, math.prod(self.size)) + log_norm_ratio(p, q, math.prod(self.result))
        return log_product(self.promise.log_value, self.promise.log_value.new_tensor(ratio), 1.0)

    def within(self, reach: Reach) -> "Declared":
        return self

    def reach(self, reach: Reach) -> Reach:
        """A ball around the image of the center; an evaluation of the module is trusted to half of its digits or so."""
        p = self.promise.metric.p_in
        offset = torch.maximum(reach.high - reach.center, reach.center - reach.low)
        # The ball of the reach, or its box, whichever is smaller in the norm of the promise.
        spread = torch.linalg.vector_norm(offset, ord=p)
        if p == 2:
            spread = torch.minimum(spread, reach.radius)
        image = self._images(reach.center[None])[0]
        trusted = self._rounding_share
        center = image.to(reach.center.dtype)
        error = trusted * (center.abs().max() + reach.center.abs().max())
        moved = self.promise.value * spread * (1 + ROUNDINGS_8192) + error
        # ||v||_2 <= ||v||_p for p <= 2, and at most n^(1/2 - 1/p) times as large beyond.
        radius = moved * max(1.0, center.numel() ** (0.5 - 1 / p)) * (1 + ROUNDINGS_8192)
        return Reach(center - moved, center + moved, center, radius)

    def __str__(self) -> str:
        return f"declared by {self.path or 'the model'}"


@final
class _Watching(TorchDispatchMode):
    """Notes the narrowest floating-point type of any result computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.narrowest = torch.float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                self.narrowest = max(self.narrowest, value.dtype.to_real(), key=lambda dtype: torch.finfo(dtype).eps)
        return found
