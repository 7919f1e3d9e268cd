"""`lipkit spectral`: which frequencies of images a classifier uses, by Shapley values of bands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._files import write_whole
from lipkit._seeds import check_seed, derive_seed
from lipkit.analysis import (
    GaussianBaseline,
    PrintedScore,
    ReplacementBaseline,
    RoundRings,
    SignedScore,
    SpectralGame,
    SpectralValues,
    SquareRings,
    ZeroBaseline,
)
from lipkit.cli.console import bar, terminal
from lipkit.cli.inputs import load, option_words
from lipkit.cli.inputs.adapted_model import Adaptation, parse_classes
from lipkit.cli.inputs.datasets import test_set
from lipkit.cli.inputs.device import device_of
from lipkit.cli.options import PYTHON_MODEL, WEIGHTS, argument, option, spell_command
from lipkit.cli.runs.claimed_folder import ClaimedFolder
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.result_files import write_json
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.errors import ArgumentError, NonFiniteError, RecordError, ShapeError
from lipkit.report.html.spectral_page import write_spectral_page
from lipkit.report.results.spectral_contents import SPECTRAL, SpectralContents

_CHANGES_VALUES = ("bands", "rings", "baseline", "orders", "beta", "seed")
# Images of one block, after which results are on the disk.
_BLOCK = 32
_RINGS = {"square": SquareRings(), "round": RoundRings()}
# What a seed makes of each.
_BASELINES = {
    "zero": lambda _: ZeroBaseline(),
    "gaussian": lambda seed: GaussianBaseline(seed=seed),
    "replacement": ReplacementBaseline,
}


@final
@dataclass(frozen=True)
class SpectralRequest:
    """Which frequencies a classifier of images uses: Shapley values of bands, with errors, and robustness scores.

    Estimates from a sample of images; nothing is certified. Ends at any time, and the same command continues.
    """

    model: str = argument(PYTHON_MODEL, "MODEL")
    data: str = option("digits, mnist:FOLDER, fashion-mnist:FOLDER, cifar10:FOLDER, or a .npz file with x and y.")
    out: Path = option("Folder for values as they come, and the page; the same continues.")
    bands: int = option(
        "Number of bands, at least 2; of square images square rings make at most half a side + 1. Up to 12 all 2^bands "
        "coalitions are evaluated.",
        8,
    )
    rings: str = option("Shape of bands in the frequency plane: square or round.", "square")
    baseline: str = option(
        "What replaces an absent band: zero, gaussian noise, or replacement by that of another image of its block.",
        "zero",
    )
    orders: int = option("Orders of bands drawn for each image beyond 12 bands.", 16, least=2)
    beta: float = option("Weight of the next higher band in a score, in (0, 1).", 0.75)
    weights: Path | None = option(WEIGHTS, None)
    output: str | None = option("Entry of the model's output, by name or position, if it is no tensor.", None)
    normalize: str | None = option("MEAN,STD before the model; M1:M2:M3,S1:S2:S3 for channels.", None)
    classes: str | None = option("Names of the classes: a,b,c or a file with one in each line.", None)
    samples: int | None = option("Only the first so many images.", None, least=2)
    batch: int = option("The most images in one forward pass.", 1024, least=1)
    device: str = option("cpu or cuda.", "cpu")
    seed: int = option("Draws orders beyond 12 bands, baselines, and weights where there are none.", 0)
    json: Path | None = option("File for the numbers of the page.", None)

    @property
    def command(self) -> str:
        """The command that does it again."""
        return spell_command("spectral", self, ("data", "bands", "seed"))

    @property
    def options(self) -> dict[str, str]:
        """Every setting that changes values, as text; files are told apart by their hashes instead."""
        named = {name: str(getattr(self, name)) for name in _CHANGES_VALUES}
        given = ("output", "normalize", "classes")
        return {**named, **{name: value for name in given if (value := getattr(self, name)) is not None}}

    def images(self) -> Examples:
        """The images of the game."""
        found = test_set(self.data, None, None if self.classes is None else parse_classes(self.classes))
        return found.at(range(len(found))[: self.samples])

    def game(self, model: nn.Module, block: int) -> SpectralGame:
        """The game of one block of images."""
        if self.rings not in _RINGS:
            raise ArgumentError(f"--rings is square or round, got {self.rings!r}.")
        if self.baseline not in _BASELINES:
            raise ArgumentError(f"--baseline is zero, gaussian or replacement, got {self.baseline!r}.")
        # Draws of a block depend on nothing that was played before, so that a game that continues is the same.
        seed = derive_seed(self.seed, block)
        baseline = _BASELINES[self.baseline](derive_seed(seed, 1))
        return SpectralGame(model, self.bands, _RINGS[self.rings], baseline, self.batch, self.orders, seed)


def play_spectral_game(request: SpectralRequest) -> None:
    """Play the game; print Shapley values and scores, and write them with a page.

    The folder of `--out` then holds: run.json, the weights where no file was named for them, blocks/ with a file for
    each 32 images, spectral.json and spectral.html. Cost: 2^bands forward passes for each image, beyond 12 bands
    orders (bands + 1).
    """
    option_words.check_json(request.json)
    check_seed(request.seed, "--seed")
    if not 0 < request.beta < 1:
        raise ArgumentError(f"--beta lies in (0, 1), got {request.beta:g}.")
    request.game(nn.Identity(), 0)
    device = device_of(request.device)
    own = load.model_with_weights(request.model, request.weights, request.seed)
    if not isinstance(own, nn.Module):
        raise ArgumentError("Filtered images are evaluated by a model of a Python file; a .pt2 program has one batch.")
    adaptation = Adaptation(request.output, request.normalize, request.classes)
    model, images = adaptation.adapt(own.eval(), request.images(), request.model, request.data)
    _check_images(images, request.data)
    folder = ClaimedFolder.claim(request, request.out, own, images, Team(device))
    with lock_folder(folder.path, leads=True):
        values = _play_blocks(request, model.to(device), images, folder.path / "blocks", device)
        contents = _gather(request, values, folder)
        write_whole(folder.path / SPECTRAL, contents.to_json())
        page = write_spectral_page(contents, folder.path)
    write_json(request.json, _numbers(contents))
    say = terminal().print
    for line in contents.lines():
        say(line, soft_wrap=True, markup=False, highlight=False)
    say(f"page in {page}; nothing is certified", soft_wrap=True, markup=False, highlight=False)


def _check_images(images: Examples, where: str) -> None:
    if len(images) < 2:
        raise ArgumentError(f"A spectral game needs at least two images, and {where} gives {len(images)}.")
    if images.inputs.ndim < 3:
        raise ShapeError(
            f"Bands of frequencies are of images, and the inputs of {where} are {tuple(images.inputs.shape[1:])}."
        )
    if not bool(torch.isfinite(images.inputs).all()):
        raise NonFiniteError(f"The images of {where} have NaN or infinite pixels; remove those images.")


def _play_blocks(
    request: SpectralRequest, model: nn.Module, images: Examples, folder: Path, device: torch.device
) -> SpectralValues:
    """The game of all images, block by block; blocks that are on the disk are not played again."""
    folder.mkdir(exist_ok=True)
    # A block has at least two images, as a game needs.
    starts = list(range(0, max(1, len(images) - 1), _BLOCK))
    found: list[SpectralValues] = []
    with bar("playing") as show:
        for number, start in enumerate(starts):
            end = len(images) if number == len(starts) - 1 else start + _BLOCK
            path = folder / f"{number:05}.json"
            if path.is_file():
                found.append(_read_block(path, end - start, request.bands))
            else:
                inputs, labels = images.inputs[start:end].to(device), images.labels[start:end].to(device)
                found.append(request.game(model, number)(inputs, labels))
                write_whole(path, to_sealed_json(_plain(found[-1])))
            show(end, len(images), "")
    return _join(found)


def _plain(values: SpectralValues) -> dict[str, Any]:
    return {
        "values": None if values.values is None else values.values.tolist(),
        "each": values.each.tolist(),
        "sampling_error": values.sampling_error.tolist(),
    }


def _read_block(path: Path, images: int, bands: int) -> SpectralValues:
    data = from_sealed_json(path.read_bytes(), str(path), "remove it, and run the same command again")
    try:
        values = None if data["values"] is None else _row(data["values"])
        found = SpectralValues(values, _row(data["each"]), _row(data["sampling_error"]))
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path} is no block of a spectral game; remove it, and run the command again.") from error
    if found.each.shape != (images, bands):
        raise RecordError(f"{path} is of other images; remove it, and run the same command again.")
    return found


def _row(numbers: object) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _join(blocks: list[SpectralValues]) -> SpectralValues:
    """One result of all images: means are weighted by the number of images, errors of drawn orders add as variances."""
    each = torch.cat([one.each.cpu() for one in blocks])
    worth = [one.values.cpu() * len(one.each) for one in blocks if one.values is not None]
    values = torch.stack(worth).sum(0) / len(each) if worth else None
    errors = torch.stack([one.sampling_error.cpu() * len(one.each) for one in blocks])
    return SpectralValues(values, each, errors.square().sum(0).sqrt() / len(each))


def _gather(request: SpectralRequest, values: SpectralValues, folder: ClaimedFolder) -> SpectralContents:
    printed, signed = (values.score_interval(request.beta, form) for form in (PrintedScore(), SignedScore()))
    return SpectralContents(
        model=request.model, data=request.data, command=request.command, weights=folder.hashes.weights,
        images=len(values.each), rings=request.rings, beta=request.beta, shapley=tuple(values.shapley.tolist()),
        error=tuple(values.error.tolist()), sampling_error=tuple(values.sampling_error.tolist()),
        sid=tuple(values.sid.tolist()), values=None if values.values is None else tuple(values.values.tolist()),
        printed=(printed.value, printed.low, printed.high), signed=(signed.value, signed.low, signed.high),
    )  # fmt: skip


def _numbers(contents: SpectralContents) -> dict[str, Any]:
    """What the page shows, for `--json`."""
    columns = (contents.shapley, contents.error, contents.sampling_error, contents.sid)
    names = ("shapley", "standard_error", "sampling_error", "importance")
    scores = {"printed": contents.printed, "signed": contents.signed}
    return {
        "images": contents.images,
        "bands": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
        "values": contents.values,
        "scores": {name: dict(zip(("value", "low", "high"), row, strict=True)) for name, row in scores.items()},
    }
