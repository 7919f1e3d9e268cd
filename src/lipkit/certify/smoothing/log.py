"""The log of a smoothing run: everything that certificates rest on, image by image, so that they can be made anew."""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from lipkit.bounds.certificates.json_codec import from_plain
from lipkit.certify.evaluate.result_folder import REMEDY, read_lines, read_settings
from lipkit.certify.smoothing.noise import Noise
from lipkit.certify.smoothing.samples import Moments, Samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.errors import CertificateError, RecordError
from lipkit.rounding.slacks import ROUNDINGS_8192


@final
@dataclass(frozen=True, eq=False)
class ImageSamples:
    """One image of a run: its place in the data, its label, a hash of the input, and its samples as a batch of one."""

    index: int
    label: int
    digest: str
    samples: Samples

    def to_line(self) -> dict[str, Any]:
        """As plain data; numbers keep all their digits."""
        one = self.samples
        logits = one.selection[0].to(torch.float32).contiguous().numpy()
        return {
            "index": self.index,
            "label": self.label,
            "digest": self.digest,
            "counts": one.counts[0].tolist(),
            "spent": int(one.spent[0]),
            "tracked": one.tracked[0].tolist(),
            "moments": [{"first": m.first[0].tolist(), "second": m.second[0].tolist()} for m in one.moments],
            "selection": base64.b64encode(logits.astype("<f4").tobytes()).decode(),
        }


@final
@dataclass(frozen=True, eq=False)
class Log:
    """The contents of a folder: settings of the run, law of its noise, its votes, and the images by their index."""

    folder: Path
    settings: Mapping[str, Any]
    noise: Noise
    maps: tuple[SimplexMap, ...]
    images: Mapping[int, ImageSamples]

    @classmethod
    def read(cls, folder: str | Path) -> "Log":
        """The log in a folder; lines that are damaged, impossible or contradict others are refused and named."""
        path = Path(folder)
        try:
            settings = read_settings(path)
        except OSError as error:
            raise RecordError(
                f"{path} holds no log of a smoothing run ({error.strerror}: settings.json); name its folder."
            ) from error
        try:
            noise = from_plain(settings["noise"], Noise)
            maps = tuple(from_plain(one, SimplexMap) for one in settings["maps"])
            form = _Form(maps, settings["n0"], settings["n"], settings["classes"], settings["stop"] is not None, noise)
        except (KeyError, TypeError, ValueError, CertificateError) as error:
            raise RecordError(f"{path} holds no log of a smoothing run ({error}); name its folder.") from error
        found: dict[int, ImageSamples] = {}
        for where, data in read_lines(path):
            image = _parsed(data, form, where)
            if image.index in found and found[image.index].to_line() != image.to_line():
                raise RecordError(
                    f"{where}: image {image.index} is there twice, with different votes; give another folder."
                )
            found[image.index] = image
        return cls(path, settings, noise, maps, dict(sorted(found.items())))

    def require_whole(self) -> None:
        """Refuse a log that lacks images of its data: shares of some would pass for shares of all."""
        if not self.images:
            raise RecordError(f"{self.folder} holds no images yet; run certify_data with that folder first.")
        total = self.settings["data"]["samples"]
        if total is not None and len(self.images) < total:
            raise RecordError(
                f"{self.folder} holds the votes of {len(self.images)} of {total} images; run the same command again to "
                "continue."
            )


@final
@dataclass(frozen=True)
class _Form:
    """The form of the lines of a log."""

    maps: tuple[SimplexMap, ...]
    n0: int
    n: int
    classes: int
    adaptive: bool
    noise: Noise


def _parsed(data: Mapping[str, Any], form: _Form, where: str) -> ImageSamples:
    n0, classes, maps = form.n0, form.classes, form.maps
    try:
        index, label, spent = (_whole(data[name]) for name in ("index", "label", "spent"))
        logits = np.frombuffer(base64.b64decode(data["selection"], validate=True), "<f4").reshape(1, n0, classes)
        counts, tracked = ([_whole(one) for one in data[name]] for name in ("counts", "tracked"))
        soft = [one for one in maps if not isinstance(one, Hardmax)]
        moments = [
            Moments(one, _row(sums["first"], len(tracked) + 1), _row(sums["second"], len(tracked) + 1))
            for one, sums in zip(soft, data["moments"], strict=True)
        ]
        if len(counts) != classes or sum(counts) != spent or not 0 < spent <= form.n:
            raise ValueError(f"{sum(counts)} votes of {len(counts)} classes for {spent} samples")
        if spent < form.n and not form.adaptive:
            raise ValueError(f"{spent} of {form.n} samples")
        if tracked != sorted(set(tracked)) or not tracked or tracked[-1] >= classes or label >= classes:
            raise ValueError("a class that there is not")
        if not np.isfinite(logits).all():
            raise ValueError("logits that are not finite")
        # Sums of numbers in [0, r] and of their squares, up to the roundings of a sum.
        for one in moments:
            most = one.map.mass * spent * (1 + ROUNDINGS_8192)
            inside = (one.first >= 0) & (one.first <= most) & (one.second >= 0)
            if not bool((inside & (one.second <= one.map.mass * one.first * (1 + ROUNDINGS_8192))).all()):
                raise ValueError(f"moments of {one.map} that no votes have")
        samples = Samples(
            torch.from_numpy(logits.astype(np.float32)), torch.tensor([counts]), torch.tensor([spent]),
            torch.tensor([tracked]), tuple(moments), maps, form.adaptive, form.noise,
        )  # fmt: skip
        return ImageSamples(index, label, str(data["digest"]), samples)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RecordError(f"{where} is no result of an image ({error}); {REMEDY}.") from error


def _whole(number: object) -> int:
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError(f"{number!r} instead of a whole number")
    return number


def _row(numbers: Iterable[float], length: int) -> Tensor:
    found = torch.tensor([[float(one) for one in numbers]], dtype=torch.float64)
    if found.shape != (1, length) or not bool(torch.isfinite(found).all()):
        raise ValueError(f"{found.shape[1]} sums instead of {length} finite ones")
    return found
