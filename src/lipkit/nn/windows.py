"""How sliding windows cover an image."""

import math

from lipkit.errors import ArgumentError

Sizes = int | tuple[int, ...]


def each_axis(value: Sizes, dims: int, name: str) -> tuple[int, ...]:
    """One number an axis, from one for all or from a tuple."""
    found = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(found) != dims:
        raise ArgumentError(f"{name} needs one number or {dims} of them, got {value}.")
    return found


def covering(kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> int:
    """The largest number of windows that contain one input: the product over axes of ceil(k gcd(s, d) / s).

    Windows i with i s + t d = n for a tap t < k: solutions t lie s / gcd(s, d) apart. It is attained on large images
    and an upper bound on small ones.
    """
    # A list: compilers do not follow a generator into math.prod.
    return math.prod([-(-k * math.gcd(s, d) // s) for k, s, d in zip(kernel, stride, dilation, strict=True)])
