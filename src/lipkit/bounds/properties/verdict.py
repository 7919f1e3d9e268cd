"""The answer to a yes-or-no question about a network: proven, disproven with a witness, or unknown with a reason."""

import enum
from dataclasses import dataclass
from typing import final

from jaxtyping import Float64
from torch import Tensor

from lipkit.errors import KindError
from lipkit.regions import Everywhere, Region


class ProofAnswer(enum.Enum):
    """Proven, unknown or disproven; the value is how it is said."""

    PROVEN = "proven"
    UNKNOWN = "unknown"
    DISPROVEN = "disproven"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True, eq=False)
class Finding:
    """The answer for one entry of the output, why, and the points that disprove the property, one in each row."""

    answer: ProofAnswer
    reason: str
    witness: Float64[Tensor, "points ..."] | None = None


@final
@dataclass(frozen=True, eq=False)
class ProofVerdict:
    """Everything known about `question` on `region`: one finding for each entry of the flattened output.

    PROVEN and DISPROVEN are proofs about the function of real arithmetic, rounding included. UNKNOWN says that neither
    proof went through, and nothing about the function. A verdict is no truth value; ask for `answer` or `proven`.
    """

    question: str
    region: Region
    findings: tuple[Finding, ...]

    @property
    def answer(self) -> ProofAnswer:
        """For all outputs together: PROVEN if every one is, DISPROVEN if any one is."""
        answers = {finding.answer for finding in self.findings}
        if ProofAnswer.DISPROVEN in answers:
            return ProofAnswer.DISPROVEN
        return ProofAnswer.UNKNOWN if ProofAnswer.UNKNOWN in answers else ProofAnswer.PROVEN

    @property
    def proven(self) -> bool:
        """Whether the property is proven for every output."""
        return self.answer is ProofAnswer.PROVEN

    @property
    def reason(self) -> str:
        """The reason behind `answer`, of the first output that decides it."""
        return self._deciding.reason

    @property
    def witness(self) -> Float64[Tensor, "points ..."] | None:
        """The points that disprove it, of the first output for which there are any."""
        return self._deciding.witness

    @property
    def _deciding(self) -> Finding:
        answer = self.answer
        return next(finding for finding in self.findings if finding.answer is answer)

    def __bool__(self) -> bool:
        raise KindError(f"A verdict is proven, disproven or unknown ({self}); compare its `answer`, or read `proven`.")

    def __str__(self) -> str:
        where = "everywhere" if self.region == Everywhere() else f"on the {self.region}"
        return f"{self.question} {where}: {self.answer} ({self.reason})"
