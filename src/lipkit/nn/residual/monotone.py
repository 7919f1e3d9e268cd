"""Activations that a gradient step may use: non-decreasing, with slopes of at most one."""

from collections.abc import Callable

from torch import nn

from lipkit.errors import UnsupportedError
from lipkit.nn.core.gain import SWITCH

# Whether the module, with its parameters, has all slopes in [0, 1].
_KNOWN: dict[type[nn.Module], Callable[[nn.Module], bool]] = {
    nn.Identity: lambda _: True,
    nn.ReLU: lambda _: True,
    nn.ReLU6: lambda _: True,
    nn.Tanh: lambda _: True,
    nn.Hardtanh: lambda _: True,
    nn.Sigmoid: lambda _: True,
    nn.Hardsigmoid: lambda _: True,
    nn.LogSigmoid: lambda _: True,
    nn.Softsign: lambda _: True,
    nn.Softshrink: lambda _: True,
    nn.Tanhshrink: lambda _: True,
    nn.Softplus: lambda m: isinstance(m, nn.Softplus) and m.beta > 0 and m.threshold >= SWITCH,
    nn.LeakyReLU: lambda m: isinstance(m, nn.LeakyReLU) and 0 <= m.negative_slope <= 1,
    nn.ELU: lambda m: isinstance(m, nn.ELU) and 0 <= m.alpha <= 1,
    nn.CELU: lambda m: isinstance(m, nn.CELU) and m.alpha > 0,
}


def monotone(activation: nn.Module, layer: str) -> nn.Module:
    """The activation, if it is a module of torch.nn that is known to be non-decreasing with slopes of at most one.

    Then it is the derivative of a convex function, and I - W' C D W with D = diag(slopes) lies between -I and I. With
    slopes in [-1, 1] it lies between -I and 3 I: |.| and sorting activations were measured to reach constants near 3.
    """
    check = _KNOWN.get(type(activation))
    if check is None or not check(activation):
        raise UnsupportedError(
            f"{layer} needs a non-decreasing activation with slopes in [0, 1], and {activation} is not known to be one "
            "(an absolute value or a sort in its place has led to constants of about 3); use nn.ReLU(), or one of "
            f"{', '.join(sorted(t.__name__ for t in _KNOWN))} with slopes in that range."
        )
    return activation
