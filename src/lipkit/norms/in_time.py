"""Any norm while there is time for it, and the quickest one afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

from torch import Tensor

from lipkit.bound import Bound
from lipkit.errors import OutOfTimeError
from lipkit.linops import LinearOperator
from lipkit.norms._base import Norm, refuse_state
from lipkit.norms.absolute_sums import AbsoluteSums
from lipkit.norms.auto import Auto


@final
@dataclass(frozen=True)
class InTime(Norm):
    """`norm` while the call that asks has time for it, sums of absolute values (`AbsoluteSums`) for all others.

    Each bound names the method that made it. Without a time limit it is `norm` itself.

    Guarantee: that of `norm`, or UPPER. Cost: the time that is left, then that of `AbsoluteSums`.
    """

    norm: Norm = Auto()

    answers_late: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.norm}, while there is time"

    def loosened(self, factor: float, /) -> Norm:
        return replace(self, norm=self.norm.loosened(factor))

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        try:
            return self.norm.many(ops)
        except OutOfTimeError:
            return AbsoluteSums().many(ops)
