"""Results of single samples on disk: appended as they come, complete after any interruption."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from lipkit.certify.evaluate.result_folder import REMEDY, ResultFolder, read_lines
from lipkit.errors import RecordError


@final
@dataclass(frozen=True)
class SampleResult:
    """The result for one sample: its place in the data, label, decision, radius, and whether an attack broke it.

    `predicted` has the largest logit; where the label shares it with others it is one of those, because a tie decides
    nothing. `broken` has one entry for each radius asked for; it is empty without an attack. `failure` is that of the
    constant that was computed for this sample alone; of a constant for all samples it is 0 here. `unproven` says that
    the attack's success was seen in float64, clearly, but that the bound on its rounding is too large to prove it.
    `digest` is a hash of the input, by which a resumed run knows its data again. `stated` says that the constant behind
    the radius does not say what it was computed from: somebody stated it. `otherwise` says that the model as it runs,
    in its own precision, gives another class than in float64, or none. `proof` names how the radius was proven on the
    `ball` of that radius around the input (`LocalRadii`); it is empty where the constant that was given proves it.
    """

    index: int
    label: int
    predicted: int
    radius: float
    broken: tuple[bool, ...] = ()
    failure: float = 0.0
    unproven: bool = False
    digest: str = ""
    stated: bool = False
    otherwise: bool = False
    ball: float = 0.0
    proof: str = ""


@final
class Records:
    """The results of samples in a folder (`ResultFolder`)."""

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], writer: int = 0) -> None:
        self._folder = ResultFolder(folder, settings, writer)

    def append(self, samples: Iterable[SampleResult]) -> None:
        """Add samples; they are on the disk when this returns."""
        self._folder.append(map(asdict, samples))

    def read(self) -> dict[int, SampleResult]:
        """All samples of all processes by their index."""
        return read_samples(self._folder.path)


def read_samples(folder: Path) -> dict[int, SampleResult]:
    """All samples of a folder by their index; a line that is damaged, or contradicts another, is refused."""
    found: dict[int, SampleResult] = {}
    for where, data in read_lines(folder):
        sample = _parsed(data, where)
        # Two runs at once find the same; anything else is not a sample that was repeated.
        if found.get(sample.index, sample) != sample:
            raise RecordError(
                f"{where}: sample {sample.index} is there twice, with different results; give another folder."
            )
        found[sample.index] = sample
    return found


def _parsed(data: Mapping[str, Any], where: str) -> SampleResult:
    try:
        index, label, predicted = (data[name] for name in ("index", "label", "predicted"))
        radius, failure, broken = float(data["radius"]), float(data["failure"]), tuple(data["broken"])
        whole = all(type(number) is int and 0 <= number < 2**63 for number in (index, label, predicted))
        unproven, digest, stated, otherwise = (data[name] for name in ("unproven", "digest", "stated", "otherwise"))
        truths = (*broken, unproven, stated, otherwise)
        ball, proof = float(data["ball"]), data["proof"]
        kinds = all(isinstance(one, bool) for one in truths) and isinstance(digest, str) and isinstance(proof, str)
        # A proof near the sample reaches the edge of its ball at most.
        near = radius <= ball < math.inf if proof else ball == 0
        if not (whole and kinds and near and radius >= 0 and 0 <= failure <= 1):
            raise ValueError("a number out of range")
        return SampleResult(
            index, label, predicted, radius, broken, failure, unproven, digest, stated, otherwise, ball, proof
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{where} is no result of a sample ({error}); {REMEDY}.") from error
