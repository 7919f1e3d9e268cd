"""Every slack of the library, by name: how much a computed number may be off, so that bounds stay on the safe side.

A slack is relative to the size of the numbers that are rounded: `value * (1 + ROUNDINGS_8)` is above the true value if
`value` came from at most eight operations, none of which cancels. All slacks are powers of two, so multiplying by them
is exact. A wider slack costs nothing that anyone could see (2^-40 is 1e-12); it is chosen where operations are hard to
count.
"""

import math
from typing import Final

import torch

# The largest relative error of one rounding to nearest in float64.
UNIT: Final = 2.0**-53
# The distance of the float64 numbers just above 1: two roundings, or one elementary function within a unit in the last
# place.
ULP: Final = 2.0**-52
# An elementary function (log, exp, root) within two units in the last place, which holds on every device.
ROUNDINGS_4: Final = 2.0**-51
# A short formula: a few products, a quotient, a root. By far the most frequent one.
ROUNDINGS_8: Final = 2.0**-50
# Sums and products of intervals, where both ends carry the roundings of middle and width.
ROUNDINGS_16: Final = 2.0**-49
# Short formulas of numbers that carry a few roundings already.
ROUNDINGS_32: Final = 2.0**-48
# Activations: up to sixteen elementary functions, each within two units in the last place.
ROUNDINGS_64: Final = 2.0**-47
# Sums of a few dozen exponentials, and the longest formulas for activations.
ROUNDINGS_128: Final = 2.0**-46
# Sums over the nodes of a network, of a hundred terms or so.
ROUNDINGS_512: Final = 2.0**-44
# More than any formula that is written out, for places where tightness does not count: 1e-12.
ROUNDINGS_8192: Final = 2.0**-40
# Whole passes through a model, or formulas of up to a million operations: 1e-9.
MILLIONS_OF_ROUNDINGS: Final = 2.0**-30

# The largest relative error of one rounding to each floating type; of a complex number, that of its parts.
UNIT_OF: Final = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-24,
    torch.float64: UNIT,
    torch.complex64: 2.0**-24,
    torch.complex128: UNIT,
}
# The same for a few roundings to float32, such as a factor that is converted where it is used.
FLOAT32_ROUNDINGS_2: Final = 2.0**-23
FLOAT32_ROUNDINGS_4: Final = 2.0**-22
FLOAT32_ROUNDINGS_16: Final = 2.0**-20

# The largest float64 below 1: probabilities of failure are capped here, for a bound needs one below 1.
ALMOST_ONE: Final = 1 - UNIT

# torch's softplus switches to x where beta x exceeds its threshold, which is a jump of log(1 + exp(-threshold)) / beta.
# It counts as a way of rounding if it is below the digits of float32 where it happens, from this threshold on, and
# below those of float32 at one. Beyond the largest one exp(beta x) overflows in float32 before it switches.
SOFTPLUS_THRESHOLDS: Final = (20.0, 88.0)


def softplus_jumps(beta: float, threshold: float) -> bool:
    """Whether torch's softplus with these parameters jumps by more than float32 rounds, so that it has no constant."""
    usual = SOFTPLUS_THRESHOLDS[0] <= threshold <= SOFTPLUS_THRESHOLDS[1]
    if not (math.isfinite(beta) and beta and usual):
        return True
    return math.log1p(math.exp(-threshold)) > UNIT_OF[torch.float32] * abs(beta)
