"""A history as plain numbers, in JSON and back, with the singular values of its layers."""

import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.analysis.dynamics.history import History, LayerHistory
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.errors import ArgumentError, RecordError

Row = tuple[float, ...]
# Fields of a layer with one number for each recorded step, and with one for each change between two of them.
_AT_TIMES, CAUSES, _NOISE = (
    ("norm", "gap", "share", "amplification"),
    ("drift", "curvature", "decay", "rest", "crossings"),
    ("kappa", "diffusion", "kappa_variance", "diffusion_variance", "kappa_scalar", "diffusion_scalar"),
)
_OF_CHANGES = (*CAUSES, "time", *_NOISE)


@final
@dataclass(frozen=True)
class StoredSpectra:
    """The singular values of a layer's `rows` x `columns` matrix over training: all, or some at even ranks.

    Of a kernel with groups they are those of all its `blocks`, each `rows` x `columns`. `values[t]` falls from the
    largest to the smallest, and `energy[t]` is the sum of the squares of all of them.
    """

    rows: int
    columns: int
    values: tuple[Row, ...]
    energy: Row
    blocks: int = 1

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.blocks) < 1 or len(self.values) != len(self.energy):
            raise ArgumentError(
                f"Spectra of a {self.rows} x {self.columns} matrix have as many rows as energies, got "
                f"{len(self.values)} and {len(self.energy)}."
            )

    def random_edge(self, time: int) -> float:
        """The edge of Marchenko and Pastur: s (sqrt(rows) + sqrt(columns)), s^2 = energy / (blocks rows columns).

        Near it lies the largest value of a large matrix of independent entries with the same mean square. A value far
        above it stands out of the noise. Guarantee: none for one matrix; it is a limit for large ones.
        """
        size = math.sqrt(self.energy[time] / (self.blocks * self.rows * self.columns))
        return size * (math.sqrt(self.rows) + math.sqrt(self.columns))

    def stable_rank(self, time: int) -> float:
        """||W||_F^2 / ||W||_2^2, between 1 and the rank."""
        return self.energy[time] / self.values[time][0] ** 2


@final
@dataclass(frozen=True)
class StoredLayer:
    """One layer: the fields of `LayerHistory` as tuples, and its spectra if known."""

    name: str
    norm: Row
    gap: Row | None
    share: Row | None
    drift: Row
    curvature: Row
    decay: Row
    rest: Row
    crossings: tuple[int, ...]
    time: Row
    kappa: Row | None
    diffusion: Row | None
    spectra: StoredSpectra | None
    kappa_variance: Row | None = None
    diffusion_variance: Row | None = None
    kappa_scalar: Row | None = None
    diffusion_scalar: Row | None = None
    amplification: Row | None = None

    @classmethod
    def of(cls, layer: LayerHistory, spectra: StoredSpectra | None) -> "StoredLayer":
        """The same numbers."""
        rows = {name: _numbers(getattr(layer, name)) for name in (*_AT_TIMES, *_OF_CHANGES)}
        return cls(name=layer.name, spectra=spectra, **rows)  # pyright: ignore[reportArgumentType]

    def to_history(self) -> LayerHistory:
        """The same numbers as tensors, without the spectra."""
        rows = {name: _tensor(getattr(self, name)) for name in (*_AT_TIMES, *_OF_CHANGES)}
        rows["crossings"] = torch.tensor(self.crossings, dtype=torch.int64)
        return LayerHistory(name=self.name, **rows)  # pyright: ignore[reportArgumentType]


@final
@dataclass(frozen=True)
class StoredHistory:
    """A `History` as plain numbers; `every` is the number of steps between two of its measurements.

    JSON both ways, exactly: numbers are written with all their digits. Numbers are finite and rows fit together, or
    it is refused.
    """

    every: int
    label: str
    steps: tuple[int, ...]
    log_constant: Row
    realised: Row
    expected: Row | None
    sampled: Row | None
    layers: tuple[StoredLayer, ...]
    refused: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        times = len(self.steps)
        if not times or any(a >= b for a, b in itertools.pairwise(self.steps)):
            raise ArgumentError("The steps of a history increase, and there is at least one.")
        rows = {name: getattr(self, name) for name in ("log_constant", "realised", "expected", "sampled")}
        _check_rows("the history", rows, times)
        for layer in self.layers:
            _check_rows(layer.name, {name: getattr(layer, name) for name in _AT_TIMES}, times)
            _check_rows(layer.name, {name: getattr(layer, name) for name in _OF_CHANGES}, times - 1)
            if min(layer.norm) <= 0:
                raise ArgumentError(f"norm of {layer.name} is above zero, got {min(layer.norm)}.")
            if layer.spectra is not None:
                _check_rows(layer.name, {"energy": layer.spectra.energy}, times)

    @classmethod
    def of(cls, history: History, every: int, spectra: dict[str, StoredSpectra] | None = None) -> "StoredHistory":
        """The same numbers; `spectra` are those of some layers, by name, at the same steps."""
        known = spectra or {}
        return cls(
            every=every,
            label=history.label,
            steps=tuple(history.steps.tolist()),
            log_constant=tuple(history.log_constant.tolist()),
            realised=tuple(history.realised.tolist()),
            expected=_numbers(history.expected),
            sampled=_numbers(history.sampled),
            layers=tuple(StoredLayer.of(layer, known.get(layer.name)) for layer in history.layers),
            refused=tuple(sorted(history.refused.items())),
        )

    def to_history(self) -> History:
        """The same numbers as tensors, without the spectra."""
        return History(
            self.label,
            torch.tensor(self.steps),
            torch.tensor(self.log_constant, dtype=torch.float64),
            torch.tensor(self.realised, dtype=torch.float64),
            _tensor(self.expected),
            _tensor(self.sampled),
            tuple(layer.to_history() for layer in self.layers),
            dict(self.refused),
        )

    def to_json(self) -> bytes:
        """As JSON text, with a checksum."""
        return to_sealed_json(to_plain(self, StoredHistory)) + b"\n"  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, content: bytes, where: str) -> "StoredHistory":
        """The history that `to_json` wrote; anything else raises a `RecordError` that names `where`."""
        remedy = "train again with --profile"
        data = from_sealed_json(content.removesuffix(b"\n"), where, remedy)
        try:
            return from_plain(data, cls)  # pyright: ignore[reportArgumentType]
        except (ValueError, RecursionError) as error:
            said = str(error).replace("The certificate", "it")
            raise RecordError(f"{where} is no history of a training ({said}); {remedy}.") from error

    def thinned(self, most: int) -> "StoredHistory":
        """The same at no more than about `most` of its steps, the first and the last among them.

        Causes are summed over the steps that are left out, so that books still close, and noise terms are means over
        the time of the model, so that forecasts stay.
        """
        if most < 2:
            raise ArgumentError(f"A history keeps at least two steps, got {most}.")
        stride = -(-(len(self.steps) - 1) // (most - 1))
        if stride <= 1:
            return self
        last = len(self.steps) - 1
        kept = sorted({*range(0, last, stride), last})
        rows = ("steps", "log_constant", "realised", "expected", "sampled")
        chosen = {name: _pick(getattr(self, name), kept) for name in rows}
        return replace(self, layers=tuple(_thin(layer, kept) for layer in self.layers), **chosen)


def read_history(path: Path) -> History:
    """The history in the profile.json that `lipkit train --profile` wrote, for forecasts, phases and driving factors.

    Every number is what it was when it was written. A file that was changed since, or is something else, is refused
    with a `RecordError`. Singular values, which the file has too, are for the page.

    Guarantee: ESTIMATE, as the history. Cost: one pass over the file.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(
            f"{path} cannot be read ({error.strerror}); give the profile.json in the folder of a run of "
            "`lipkit train --profile`."
        ) from error
    return StoredHistory.from_json(content, str(path)).to_history()


def _thin(layer: StoredLayer, kept: list[int]) -> StoredLayer:
    spans = list(itertools.pairwise(kept))
    sums = {name: tuple(sum(getattr(layer, name)[a:b]) for a, b in spans) for name in (*CAUSES, "time")}
    means = {name: _means(getattr(layer, name), layer.time, spans) for name in _NOISE}
    spectra = layer.spectra
    if spectra is not None:
        spectra = replace(spectra, values=_pick(spectra.values, kept), energy=_pick(spectra.energy, kept))
    times = {name: _pick(getattr(layer, name), kept) for name in _AT_TIMES}
    return replace(layer, **sums, **means, **times, spectra=spectra)


def _means(row: Row | None, time: Row, spans: list[tuple[int, int]]) -> Row | None:
    """The means of a row over spans, weighted by time; 0 where no time passes."""
    if row is None:
        return None
    sums = [sum(r * t for r, t in zip(row[a:b], time[a:b], strict=True)) for a, b in spans]
    wholes = [sum(time[a:b]) for a, b in spans]
    return tuple(one / whole if whole else 0.0 for one, whole in zip(sums, wholes, strict=True))


def _pick(row: tuple[object, ...] | None, places: list[int]) -> object:
    return None if row is None else tuple(row[i] for i in places)


def _check_rows(whose: str, rows: dict[str, tuple[float, ...] | None], count: int) -> None:
    for name, row in rows.items():
        if row is None:
            continue
        if len(row) != count:
            raise ArgumentError(f"{name} of {whose} has {len(row)} numbers, expected {count}.")
        if not all(map(math.isfinite, row)):
            raise ArgumentError(f"{name} of {whose} has a number that is not finite.")


def _numbers(row: Tensor | None) -> tuple[float, ...] | None:
    return None if row is None else tuple(row.tolist())


def _tensor(row: tuple[float, ...] | None) -> Tensor | None:
    return None if row is None else torch.tensor(row, dtype=torch.float64)
