"""A smoothed classifier on a data set, on one process or many, resumable; other certificates from its log."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lipkit._runtime import without_casts
from lipkit.bound import Bound
from lipkit.bounds._base import NetworkPrint
from lipkit.bounds.certificates.identity import contents, model_contents, sha256_of
from lipkit.bounds.certificates.json_codec import to_plain
from lipkit.bounds.lipschitz import network_of
from lipkit.certify.evaluate.accuracy import check_radii
from lipkit.certify.evaluate.evaluation import Evaluation, said_radius
from lipkit.certify.evaluate.records import SampleResult
from lipkit.certify.evaluate.result_folder import ResultFolder
from lipkit.certify.evaluate.shards import Data, Place, batches, check_repeatable, describe_data, digests, first_batch
from lipkit.certify.radii.radius import require_subject
from lipkit.certify.smoothing.event import Method
from lipkit.certify.smoothing.log import ImageSamples, Log
from lipkit.certify.smoothing.noise import Noise
from lipkit.certify.smoothing.sampler import prepared
from lipkit.certify.smoothing.samples import join_samples
from lipkit.certify.smoothing.simplex_maps import SimplexMap
from lipkit.certify.smoothing.smoothed import DEFAULT_METHOD, HALF_PRECISION, Smoothed, check_count
from lipkit.certify.smoothing.smoothed_radii import SmoothedRadii, join_radii, radii_of
from lipkit.certify.smoothing.statistics.prediction import ABSTAIN
from lipkit.errors import ArgumentError, LipkitError, RecordError

# Noisy copies by whose logits a model without a captured network is known.
_PROBES = 8
# Images whose statistics are computed at once.
_BATCH = 64


@final
@dataclass(frozen=True, eq=False)
class SmoothedEvaluation:
    """Certified accuracy of a smoothed classifier: shares at each radius, and the certificate of each image.

    `evaluation.overall.mean_radius` is the average certified radius, where wrong and undecided images count 0. Radii
    hold with probability 1 - alpha each; `evaluation.failure` is that of all together.
    """

    evaluation: Evaluation
    radii: SmoothedRadii
    labels: Int64[Tensor, " images"]

    @property
    def abstained(self) -> int:
        """How many images have no proven class."""
        return int((self.radii.label == ABSTAIN).sum())

    def __str__(self) -> str:
        found, radii = self.evaluation, self.radii
        through = "" if radii.p == radii.through else f", through l{radii.through:g}"
        lines = [f"right      {found.overall.clean}; {self.abstained} undecided"]
        shares = zip(found.eps, found.overall.certified, strict=True)
        lines += [f"l{found.p:g} {said_radius(eps):<8} certified {share}" for eps, share in shares]
        # Rounded down, as everything that is proven.
        mean = math.floor(found.overall.mean_radius * 1e4) / 1e4
        lines.append(f"mean certified radius {mean:g} in l{found.p:g}{through}")
        lines.append(f"{radii.method}, each image with probability {1 - radii.failure:g}")
        return "\n".join(lines)


def certify_data(
    smoothed: Smoothed,
    data: Data,
    eps: Sequence[float],
    *,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 1e-3,
    method: Method = DEFAULT_METHOD,
    bound: Bound | None = None,
    p: float | None = None,
    seed: int = 0,
    block: int = 1000,
    records: str | Path | None = None,
    level: float = 0.95,
    progress: Callable[[int, int | None], None] | None = None,
) -> SmoothedEvaluation:
    """Certified accuracy of a smoothed classifier at the radii `eps`, in the norm of its noise or through it in l_`p`.

    `data` is as in `accuracy`: a DataLoader, a Dataset or any iterable of (inputs, labels) in a fixed order. With
    `records`, the votes of each image reach the disk in that folder before the next one begins, and an interrupted run
    continues there; `recertify` makes other certificates from them without the model. Under torch.distributed the
    processes share the images, and all return the whole. Votes are the same to the last bit for any number of
    processes and interruptions, at the same `block`, kind of device and number of threads.

    A folder is used again for the same model (its captured network; what cannot be captured is known by its tensors and
    its logits on a few noisy copies), data, noise, votes, `n0`, `n`, `seed` and `block`; the first stored image is
    asked again and must give the same logits. `alpha`, `method`, `bound`, `p` and `eps` may change,
    except that samples which `rs.Anytime` ended early are used with it alone. `progress` is
    called with the images done and their number in this process.

    Guarantee: each radius by itself with probability 1 - alpha. Cost: n0 + n forward passes for each image.
    """
    eps = check_radii(eps)
    check_repeatable(data)
    check_count(n0, "n0")
    check_count(n, "n")
    sampler, place = smoothed.sampler(seed, block), Place.here()
    # An image is a work of its own, unless batches are given.
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=1)
    first = first_batch(data)
    if not len(first[0]):
        raise ArgumentError("A certificate needs at least one image, got an empty data set.")
    smoothed.check_inputs(first[0], None)
    smoothed.check_bound(bound, method, first[0])
    smoothed.warn_if_hopeless(n, alpha, method, bound)
    stop = smoothed.stop_rule(alpha, method, bound)
    fresh: list[ImageSamples] = []
    settings: dict[str, object] = {}
    with prepared(smoothed.model):
        if records is not None or place.size > 1:
            settings = describe_run(smoothed, data, first, n0, n, seed, block)
            settings["stop"] = None if stop is None else describe_stop(alpha, method, bound)
        place.agree(settings)
        folder, done = _opened(records, settings, place)
        checked, seen = not done, list[int]()
        for indices, inputs, labels, total in batches(data, place, lambda _: True):
            smoothed.check_inputs(inputs, indices)
            _check_labels(labels, smoothed.num_classes)
            x = smoothed.place(inputs)
            for one, index, label, digest in zip(x, indices, labels.tolist(), digests(inputs), strict=True):
                known = done.get(index)
                if known is None:
                    fresh.append(ImageSamples(index, label, digest, sampler.draw(one, index, n0, n, stop)))
                    if folder is not None:
                        folder.append([fresh[-1].to_line()])
                else:
                    _require_same(known, label, digest, records)
                    if not checked:
                        checked = True
                        _require_agreement(known, sampler.choose(one, index, n0), records)
                seen.append(index)
                if progress is not None:
                    progress(len(seen), total)
    if gone := done.keys() - set(place.gather(seen)):
        raise RecordError(
            f"{records} holds votes for image {min(gone)}, which the data do not have; continue with the data that it "
            "is of, or give another folder."
        )
    place.meet()
    if folder is None:
        images = sorted(place.gather(fresh), key=lambda one: one.index)
    else:
        images = list(Log.read(folder.path).images.values())
    size = first[0][0].numel()
    return evaluate_images(images, smoothed.noise, size, eps, alpha, method, bound, p, level)


def recertify(
    folder: str | Path,
    eps: Sequence[float],
    *,
    alpha: float = 1e-3,
    method: Method = DEFAULT_METHOD,
    bound: Bound | None = None,
    p: float | None = None,
    level: float = 0.95,
) -> SmoothedEvaluation:
    """Certificates from the log of `certify_data`, with another alpha, method or bound. The model is not needed.

    Guarantee: as `certify_data`, for settings that were not chosen by these very votes: of two certificates take one,
    not the better of the two for each image. A bound of another network than the log's is refused. Cost: statistics.
    """
    log = Log.read(folder)
    log.require_whole()
    if bound is not None and "float16" in str(log.settings["precision"]):
        raise ArgumentError(HALF_PRECISION)
    shape = tuple(int(size) for size in log.settings["shape"])
    if bound is not None and log.settings["network"]:
        require_subject(bound, NetworkPrint(shape, str(log.settings["network"])), None)
    return evaluate_images(
        list(log.images.values()), log.noise, math.prod(shape), check_radii(eps), alpha, method, bound, p, level
    )


def evaluate_images(
    images: Sequence[ImageSamples], noise: Noise, size: int, eps: Sequence[float], alpha: float, method: Method,
    bound: Bound | None, p: float | None, level: float,
) -> SmoothedEvaluation:  # fmt: skip
    """The certificates of images of `size` entries, and their shares."""
    parts = [images[i : i + _BATCH] for i in range(0, len(images), _BATCH)]
    radii = join_radii(
        [radii_of(join_samples([one.samples for one in part]), noise, alpha, method, bound) for part in parts]
    )
    radii = radii if p is None else radii.in_norm(p, size)
    stated = bound is not None and bound.subject is None
    rows = zip(images, radii.label.tolist(), radii.radius.tolist(), strict=True)
    results = [
        SampleResult(
            one.index, one.label, label, radius if label == one.label else 0.0, failure=alpha, digest=one.digest,
            stated=stated,
        )
        for one, label, radius in rows
    ]  # fmt: skip
    evaluation = Evaluation.of(results, eps, radii.p, level, 0.0 if bound is None else bound.failure)
    return SmoothedEvaluation(evaluation, radii, torch.tensor([one.label for one in images]))


def describe_run(
    smoothed: Smoothed, data: Data, first: tuple[Tensor, Tensor], n0: int, n: int, seed: int, block: int
) -> dict[str, Any]:
    """Everything that votes depend on, by numbers and hashes. Cost: one capture, one pass over model and data."""
    x = smoothed.place(first[0][:1])
    return {
        **_describe_model(smoothed, x),
        "noise": to_plain(smoothed.noise, Noise),
        "maps": [to_plain(one, SimplexMap) for one in smoothed.maps],
        "classes": smoothed.num_classes, "n0": n0, "n": n, "seed": seed, "block": block,
        "device": torch.cuda.get_device_name(x.device) if x.device.type == "cuda" else x.device.type,
        "precision": _precision(x), "shape": list(x.shape[1:]), "data": describe_data(data, first),
    }  # fmt: skip


def describe_stop(alpha: float, method: Method, bound: Bound | None) -> dict[str, Any]:
    """Describe the rule that ends the samples of an image early."""
    constant = None if bound is None else float(bound.value.detach()).hex()
    return {"method": to_plain(method, Method), "alpha": alpha, "constant": constant}


def _describe_model(smoothed: Smoothed, x: Tensor) -> dict[str, Any]:
    """The captured network and the tensors; without a network the tensors, and the logits of a few noisy copies."""
    model = smoothed.model
    network, known = "", {}
    if isinstance(model, nn.Module):
        try:
            # What is computed, apart from the casts that are on, which `precision` tells.
            with without_casts():
                network = NetworkPrint.of(network_of(model, x)).network
        except LipkitError:
            network = ""
        known = model_contents(model, code=False)
    else:
        try:
            known = {"model": contents(model)}
        except ArgumentError:
            # A function without source is known by what it answers.
            known = {"model": ""}
    answers = "" if network else sha256_of(smoothed.sampler(0, _PROBES).choose(x[0], 0, _PROBES))
    return {**known, "network": network, "answers": answers}


def _precision(x: Tensor) -> str:
    kind = x.device.type
    cast = f", autocast to {torch.get_autocast_dtype(kind)}" if torch.is_autocast_enabled(kind) else ""
    return f"{x.dtype}{cast}"


def _opened(
    records: str | Path | None, settings: Mapping[str, object], place: Place
) -> tuple[ResultFolder | None, Mapping[int, ImageSamples]]:
    if records is None:
        return None, {}
    folder = None
    # The first writes the settings, the others find them.
    for turn in (True, False):
        if (place.rank == 0) is turn:
            folder = ResultFolder(records, settings, place.rank)
        place.meet()
    assert folder is not None
    done = Log.read(folder.path).images
    place.meet()
    return folder, done


def _check_labels(labels: Tensor, classes: int) -> None:
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise ArgumentError(f"Labels must lie in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}.")


def _require_same(known: ImageSamples, label: int, digest: str, records: object) -> None:
    if (known.digest, known.label) != (digest, label):
        what = "input" if known.digest != digest else f"label ({known.label}, now {label})"
        raise RecordError(
            f"{records} holds votes for image {known.index} with another {what}; continue with the data that it is of, "
            "or give another folder."
        )


def _require_agreement(known: ImageSamples, logits: Tensor, records: object) -> None:
    if not torch.equal(known.samples.selection[0], logits):
        raise RecordError(
            f"{records} holds other logits for noisy copies of image {known.index} than the model gives now: what it "
            "computes has changed, or the number of threads; give another folder."
        )
