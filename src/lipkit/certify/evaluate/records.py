"""Results of single samples on disk: appended as they come, complete after any interruption."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit.errors import ArgumentError, RecordError

# Characters of a setting that a message shows.
_LONG = 120


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
    """A folder of results: `settings.json`, and one file of lines for every process that wrote.

    A line is written and reaches the disk before the next batch begins. What a kill leaves of a last line is cut off
    when the folder is opened again, so a sample is there whole or not at all. Results under other settings are refused:
    a table mixes nothing. Any number of processes may resume what any other number left.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], writer: int = 0) -> None:
        self._folder = Path(folder)
        self._file = self._folder / f"samples-{writer:04d}.jsonl"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArgumentError(f"{folder} cannot be made a folder for results ({error.strerror}).") from error
        self._settle(json.loads(json.dumps(settings, allow_nan=False)))
        _mend(self._file)

    def _settle(self, settings: Mapping[str, Any]) -> None:
        path = self._folder / "settings.json"
        if not path.exists():
            write_whole(path, to_sealed_json(settings, indent=1))
            return
        known = read_settings(self._folder)
        changed = sorted(key for key in known.keys() | settings.keys() if known.get(key) != settings.get(key))
        if changed:
            where, was, now = _apart(changed[0], known.get(changed[0]), settings.get(changed[0]))
            raise RecordError(
                f"{self._folder} holds results with other settings ({', '.join(changed)}; {where} was {_short(was)}, "
                f"now {_short(now)}); continue with those, or give another folder."
            )

    def append(self, samples: Iterable[SampleResult]) -> None:
        """Add samples; they are on the disk when this returns."""
        lines = b"".join(to_sealed_json(asdict(sample)) + b"\n" for sample in samples)
        try:
            with self._file.open("ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RecordError(
                f"{self._file} cannot be written ({error.strerror}); what it holds is intact: free space and run again."
            ) from error

    def read(self) -> dict[int, SampleResult]:
        """All samples of all processes by their index."""
        return read_samples(self._folder)


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings under which the samples of a folder were found."""
    path = folder / "settings.json"
    return from_sealed_json(path.read_bytes(), str(path), "give another folder, or remove this one")


def read_samples(folder: Path) -> dict[int, SampleResult]:
    """All samples of a folder by their index; a line that is damaged, or contradicts another, is refused."""
    found: dict[int, SampleResult] = {}
    for path in sorted(folder.glob("samples-*.jsonl")):
        # Another process may be at work on its last line, or was killed there.
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
            sample = _parsed(line, f"{path}, line {number}")
            # Two runs at once find the same; anything else is not a sample that was repeated.
            if found.get(sample.index, sample) != sample:
                raise RecordError(
                    f"{path}, line {number}: sample {sample.index} is there twice, with different results; give "
                    "another folder."
                )
            found[sample.index] = sample
    return found


def _apart(where: str, was: object, now: object) -> tuple[str, object, object]:
    """The first place at which two settings differ, and what is there."""
    if not (isinstance(was, Mapping) and isinstance(now, Mapping)):
        return where, was, now
    first = next(key for key in {**was, **now} if key not in was or key not in now or was[key] != now[key])
    return _apart(f"{where} {first}", was.get(first), now.get(first))


def _short(value: object) -> str:
    """A setting in a message: constants of all pairs of a hundred classes have ten thousand numbers."""
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


def _mend(path: Path) -> None:
    """Cut off a last line that was not finished."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())


def _parsed(line: bytes, where: str) -> SampleResult:
    data = from_sealed_json(line, where, "remove that line to repeat it")
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
        raise RecordError(f"{where} is no result of a sample ({error}); remove that line to repeat it.") from error
