"""The rows of layers, which grow while a profiler runs, and can be stored and read back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.analysis.dynamics.history import History, LayerHistory
from lipkit.analysis.dynamics.norm_fold import NormFold


@final
@dataclass(frozen=True)
class Entry:
    """The causes of one change of log norm of one layer, in the order of `LayerHistory`; kappa 0.0 if not `known`.

    The last four numbers are parts of kappa and diffusion, 0.0 if not `split`.
    """

    drift: float
    curvature: float
    decay: float
    rest: float
    time: float
    kappa: float
    diffusion: float
    kappa_variance: float
    diffusion_variance: float
    kappa_scalar: float
    diffusion_scalar: float
    crossings: int
    known: int
    split: int


@final
@dataclass(frozen=True)
class Moment:
    """One layer at one recorded step: its norm, gap and amplification, and log of the norm as the three trackers have
    it.
    """

    norm: float
    gap: float | None
    amplification: float | None
    realised: float
    expected: float
    sampled: float


@final
@dataclass(frozen=True, eq=False)
class LayerRecord:
    """Grows while a profiler runs."""

    name: str
    moments: list[Moment] = field(default_factory=list[Moment])
    entries: list[Entry] = field(default_factory=list[Entry])

    def freeze(self, share: Float64[Tensor, " times"], noise: bool) -> LayerHistory:
        """The record so far, with the share of the layer in the constant, and its noise terms if there are any."""
        known = noise and all(one.known for one in self.entries)
        split = known and bool(self.entries) and all(one.split for one in self.entries)
        return LayerHistory(
            self.name,
            _row([one.norm for one in self.moments]),
            _row_or_none([one.gap for one in self.moments]),
            _row([one.drift for one in self.entries]),
            _row([one.curvature for one in self.entries]),
            _row([one.decay for one in self.entries]),
            _row([one.rest for one in self.entries]),
            torch.tensor([one.crossings for one in self.entries], dtype=torch.int64),
            _row([one.time for one in self.entries]),
            _row([one.kappa for one in self.entries]) if known else None,
            _row([one.diffusion for one in self.entries]) if known else None,
            share,
            _row([one.kappa_variance for one in self.entries]) if split else None,
            _row([one.diffusion_variance for one in self.entries]) if split else None,
            _row([one.kappa_scalar for one in self.entries]) if split else None,
            _row([one.diffusion_scalar for one in self.entries]) if split else None,
            _row_or_none([one.amplification for one in self.moments]),
        )

    def log_norms(self) -> list[float]:
        """log sigma as it was measured."""
        return [math.log(one.norm) for one in self.moments]

    def realised(self) -> list[float]:
        """log sigma by the series of the steps that were made."""
        return [one.realised for one in self.moments]

    def expected(self) -> list[float]:
        """log sigma by the mean of the model."""
        return [one.expected for one in self.moments]

    def sampled(self) -> list[float]:
        """log sigma by a draw of the model."""
        return [one.sampled for one in self.moments]

    def state(self) -> dict[str, Tensor]:
        """The rows as tensors; a gap or an amplification that does not exist is -1."""
        moments = [[-1.0 if number is None else number for number in astuple(one)] for one in self.moments]
        return {
            "moments": torch.tensor(moments, dtype=torch.float64).reshape(-1, 6),
            "causes": torch.tensor([astuple(one)[:11] for one in self.entries], dtype=torch.float64).reshape(-1, 11),
            "flags": torch.tensor([astuple(one)[11:] for one in self.entries], dtype=torch.int64).reshape(-1, 3),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take the rows of `state` in the place of these."""
        self.moments[:] = [
            Moment(norm, None if gap < 0 else gap, None if bend < 0 else bend, *trackers)
            for norm, gap, bend, *trackers in state["moments"].tolist()
        ]
        rows = zip(state["causes"].tolist(), state["flags"].tolist(), strict=True)
        self.entries[:] = [Entry(*causes, *flags) for causes, flags in rows]


def collect_history(
    records: Sequence[LayerRecord], steps: Sequence[int], fold: NormFold, label: str, refused: Mapping[str, str]
) -> History:
    """The history of these rows; noise terms and their trackers are left out where `refused` says why."""
    norms, realised, expected, sampled = (
        torch.tensor([row(record) for record in records], dtype=torch.float64)
        for row in (LayerRecord.log_norms, LayerRecord.realised, LayerRecord.expected, LayerRecord.sampled)
    )
    noise = "expected" not in refused
    shares = fold.shares(norms)
    return History(
        label,
        torch.tensor(steps),
        fold.log_constant(norms),
        fold.log_constant(realised),
        fold.log_constant(expected) if noise else None,
        fold.log_constant(sampled) if noise else None,
        tuple(record.freeze(share, noise) for record, share in zip(records, shares, strict=True)),
        refused,
    )


def _row_or_none(values: list[float | None]) -> Tensor | None:
    known = [value for value in values if value is not None]
    return _row(known) if len(known) == len(values) else None


def _row(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
