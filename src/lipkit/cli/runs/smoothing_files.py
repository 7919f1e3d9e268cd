"""Files of a smoothing run: its certificates, image by image, and its report."""

import math
from pathlib import Path
from typing import Any

import torch

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit.bound import Bound
from lipkit.bounds.certificates.certificate import Software
from lipkit.bounds.certificates.json_codec import to_plain
from lipkit.certify import smoothing as rs
from lipkit.cli.console import progress
from lipkit.cli.inputs.device import describe_device
from lipkit.cli.runs.result_files import plain
from lipkit.report.html.smoothing_page import write_smoothing_report
from lipkit.report.results.smoothing_contents import SmoothingContents, customary_methods, gather_smoothing

# The folder of the log, and the file of the certificates, inside the folder of a run.
VOTES, CERTIFICATES = "votes", "certificates.json"


def plain_smoothing(found: rs.SmoothedEvaluation) -> dict[str, Any]:
    """The shares as JSON, with what they rest on."""
    radii = found.radii
    return {
        **plain(found.evaluation, ()), "undecided": found.abstained, "alpha": radii.alpha, "method": radii.method,
        "through": "inf" if radii.through == math.inf else radii.through,
        "samples": int(radii.samples.sum()),
    }  # fmt: skip


def plain_certificates(found: rs.SmoothedEvaluation) -> dict[str, Any]:
    """The certificate of each image as JSON, with all digits; `predicted` is -1 where nothing is proven."""
    radii = found.radii
    columns = {
        "index": [one.index for one in found.evaluation.samples], "label": found.labels.tolist(),
        "predicted": radii.label.tolist(), "radius": radii.radius.tolist(), "lower": radii.lower.tolist(),
        "upper": radii.upper.tolist(), "samples": radii.samples.tolist(), "rule": list(radii.rule),
    }  # fmt: skip
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    said = plain_smoothing(found)
    return {name: said[name] for name in ("norm", "through", "alpha", "method")} | {"images": rows}


def write_certificates(folder: Path, found: rs.SmoothedEvaluation, device: torch.device) -> None:
    """Write the certificates of a run, and the machine they were made on, whole or not at all."""
    content = {"machine": describe_machine(device), **plain_certificates(found)}
    write_whole(folder / CERTIFICATES, to_sealed_json(content, indent=1))


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Describe the device and the software, on which the bits of votes depend."""
    return {"device": describe_device(device), "software": to_plain(Software.here(), Software)}


def read_certificates(folder: Path) -> dict[str, Any]:
    """The certificates of a run; a `RecordError` if the file is damaged."""
    path = folder / CERTIFICATES
    return from_sealed_json(path.read_bytes(), str(path), "run its command again")


def gather_report(
    folder: Path, eps: tuple[float, ...], alpha: float, name: str, method: rs.Method, bound: Bound | None
) -> SmoothingContents:
    """What the report of a run shows: its own method, and beside it the customary ones where they may be used."""
    methods = {name: method}
    if not isinstance(method, rs.Anytime):
        methods |= {other: one for other, one in customary_methods().items() if one != method}
    return gather_smoothing(folder / VOTES, eps, alpha=alpha, methods=methods, bound=bound)


def publish_smoothing(folder: Path, contents: SmoothingContents) -> Path:
    """Write the page and its data; returns where the page is."""
    with progress() as doing:
        doing("writing the report")
        return write_smoothing_report(contents, folder)[0]
