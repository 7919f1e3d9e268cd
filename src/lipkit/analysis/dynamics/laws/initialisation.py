"""The norm of a random matrix before training, from its size and the deviation of its entries."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

from lipkit.bound import Kind
from lipkit.errors import ArgumentError

# Mean and variance of the law of Tracy and Widom for real matrices (beta = 1).
_MEAN, _VARIANCE = -1.2065335745820, 1.6077810345810


@final
@dataclass(frozen=True)
class InitialNorm:
    """What random matrix theory predicts of sigma_1 of a matrix with independent entries of mean 0.

        edge = (sqrt(rows) + sqrt(columns)) deviation.

    `mean` and `spread` add the fluctuations T of Tracy and Widom, which matter for small matrices:

        sigma_1 / deviation ~ a + b + (1/a + 1/b)^(1/3) T / 2,   a^2 = rows - 1/2,   b^2 = columns - 1/2.

    Guarantee: ESTIMATE, asymptotic in both sizes, never a bound: nearly half of all matrices lie above the mean.
    Reference: Luo 2025, section 4.8.2; Johnstone 2001; Ma 2012 for the 1/2; the first order of the
    square root is ours. Not for orthogonal initialisations.
    """

    rows: int
    columns: int
    deviation: float

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1 or not 0 < self.deviation < math.inf:
            raise ArgumentError(
                f"A random matrix has at least one row and column and a positive deviation, got {self!r}."
            )

    @classmethod
    def kaiming(cls, rows: int, columns: int) -> Self:
        """Kaiming's normal initialisation: deviation (2 / columns)^(1/2)."""
        return cls(rows, columns, math.sqrt(2 / columns))

    @classmethod
    def torch_default(cls, rows: int, columns: int) -> Self:
        """The default of nn.Linear and convolutions: uniform, with deviation (3 columns)^(-1/2)."""
        return cls(rows, columns, math.sqrt(1 / (3 * columns)))

    @property
    def kind(self) -> Kind:
        """Always an estimate: a prediction proves nothing."""
        return Kind.ESTIMATE

    @property
    def edge(self) -> float:
        """The limit for large matrices."""
        return (math.sqrt(self.rows) + math.sqrt(self.columns)) * self.deviation

    @property
    def mean(self) -> float:
        """The mean over draws."""
        edge, scale = self._centre_and_scale()
        return edge + scale * _MEAN

    @property
    def spread(self) -> float:
        """The standard deviation over draws."""
        return self._centre_and_scale()[1] * math.sqrt(_VARIANCE)

    def _centre_and_scale(self) -> tuple[float, float]:
        a, b = math.sqrt(self.rows - 0.5), math.sqrt(self.columns - 0.5)
        return self.deviation * (a + b), self.deviation * (1 / a + 1 / b) ** (1 / 3) / 2


def initialisation_law(layers: Sequence[InitialNorm]) -> float:
    """log K(0) of a chain before training: the sum of log of the edges of its layers.

    A convolution is its matrix (c_out, c_in k k) here, whose norm does not bound it.

    Guarantee: ESTIMATE, asymptotic in all sizes. Reference: Luo 2025, section 4.8.2.
    """
    if not layers:
        raise ArgumentError("A chain has at least one layer, got none.")
    return sum(math.log(layer.edge) for layer in layers)
