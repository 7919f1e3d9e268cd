"""The largest slopes of torch's smooth activations, computed from their definitions."""

import math
from collections.abc import Callable
from typing import Final

from lipkit.rounding.slacks import ROUNDINGS_8192

# Each is evaluated at a bisected maximum, where an error of the argument enters squared: what is left are a few units
# of float64, far below this.
_UP = 1 + ROUNDINGS_8192


def _root(fn: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that is positive at `low` and negative at `high` changes its sign."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if fn(middle) > 0 else (low, middle)
    return low


def _gelu() -> float:
    """GELU, z Phi(z): the second derivative is phi(z) (2 - z^2), so Phi + z phi at sqrt(2), which is 1.1289..."""
    return (0.5 * (1 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)) * _UP


def _silu() -> float:
    """SiLU, z sigmoid(z): 1/2 + x/4 where x tanh(x/2) = 2, which is 1.0998...; the same for z sigmoid(beta z)."""
    return (0.5 + _root(lambda x: 2 - x * math.tanh(x / 2), 2.0, 3.0) / 4) * _UP


def _mish() -> float:
    """Mish, z w(z) with w = tanh(softplus(z)) = n (n + 2) / D, n = e^z, D = n^2 + 2 n + 2: w + z w' where 2 w' + z w''
    = 0.

    w' = 4 n (n + 1) / D^2 and w'' = 4 n (2 + 2 n - 3 n^2 - 2 n^3) / D^3; the largest slope is 1.0885...
    """

    def bend(z: float) -> float:
        n = math.exp(z)
        d = n * n + 2 * n + 2
        return 2 * (n + 1) * d + z * (2 + 2 * n - 3 * n * n - 2 * n**3)

    z = _root(bend, 1.0, 2.0)
    n = math.exp(z)
    d = n * n + 2 * n + 2
    return (n * (n + 2) / d + z * 4 * n * (n + 1) / d**2) * _UP


def _gelu_tanh() -> float:
    """GELU in its tanh form, z (1 + tanh u)/2 with u = sqrt(2/pi) (z + .044715 z^3): the slope where it is largest."""
    c, a = math.sqrt(2 / math.pi), 0.044715

    def bend(z: float) -> float:
        t, du = math.tanh(c * (z + a * z**3)), c * (1 + 3 * a * z * z)
        return (1 - t * t) * (du + z / 2 * (6 * a * c * z - 2 * t * du * du))

    z = _root(bend, 1.0, 2.0)
    t = math.tanh(c * (z + a * z**3))
    return (0.5 * (1 + t) + z / 2 * (1 - t * t) * c * (1 + 3 * a * z * z)) * _UP


GELU: Final = _gelu()
GELU_TANH: Final = _gelu_tanh()
SILU: Final = _silu()
MISH: Final = _mish()
