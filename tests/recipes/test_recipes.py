"""Every recipe of the folder runs in its quick form, on small files that look like the real ones."""

import dataclasses
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch

from lipkit.cli.inputs import load
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.main import Code, main
from lipkit.cli.runs.run import Order, load_recipe, run
from lipkit.cli.training import PrivateRecipe, Recipe
from lipkit.cli.training.journal import Journal
from lipkit.cli.training.overrides import make_recipe
from lipkit.cli.training.processes import Team
from lipkit.data import cifar
from lipkit.errors import ArgumentError
from support.repository import ROOT

# The converter of data beside them is no recipe, and has tests of its own.
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*.py") if path.stem != "cifar10_from_sheets")
NAMES = [path.stem for path in RECIPES]
# The norms of convolutions take most of these runs, and fewer channels are enough to go the same way.
SMALLER = {"cifar10_norms": ("--channels=1",), "one_batch_norm": ("--channels=1",)}
# Pictures of the training and the test set: a few batches of 16.
COUNTS = {"train": 80, "test": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with small files of MNIST (IDX) and CIFAR-10 (binary batches)."""
    where = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    small: dict[str, tuple[cifar._Batch, ...]] = {}
    for split, count in COUNTS.items():
        labels = np.arange(count, dtype=np.uint8) % 10
        stem = "train" if split == "train" else "t10k"
        grey = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (where / f"{stem}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *grey.shape) + grey.tobytes())
        (where / f"{stem}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels.tobytes())
        colour = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        records = np.concatenate([labels[:, None], colour], axis=1)
        files = getattr(cifar._TEN, split)
        small[split] = tuple(dataclasses.replace(file, count=count // len(files)) for file in files)
        for file, part in zip(files, np.split(records, len(files)), strict=True):
            (where / f"{file.name}.bin").write_bytes(part.tobytes())
    with pytest.MonkeyPatch.context() as patch:
        # Recipes read whole files, which have 10,000 images each.
        patch.setattr(cifar, "_TEN", dataclasses.replace(cifar._TEN, **small))
        yield where


@pytest.mark.train
@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_the_quick_form_runs_and_passes_an_audit(
    path: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (f"--data={folder}", "--batch=16") if recipe_class(path).needs_data else ()
    words += SMALLER.get(path.stem, ())
    order = Order(path, tmp_path / "run", words, quick=True)
    recipe = load_recipe(order)
    if recipe.goal is None:
        _train_without_goal(order, capsys)
        return
    with torch.random.fork_rng(devices=[]):
        found = run(order, recipe, Team(torch.device("cpu")))
    assert found.bound.kind.certifies
    assert found.evaluation.eps == recipe.goal.eps
    entries = Journal(tmp_path / "run" / "journal.jsonl").read()
    if isinstance(recipe, PrivateRecipe):
        # A loss of private records would be a release; what is known of each entry is what it cost.
        assert all(0 < entry["epsilon"] <= recipe.epsilon and "loss" not in entry for entry in entries)
    else:
        assert all(math.isfinite(entry["loss"]) for entry in entries)
        # What is watched is a number or deliberately nothing, but the same throughout.
        assert len({entry["constant"] is None for entry in entries}) == 1
    # Targets that a recipe computes itself are only repeated with the whole training.
    whole = ["--retrain"] if type(recipe).targets is not Recipe.targets else []
    with torch.random.fork_rng(devices=[]):
        assert main(["audit", str(tmp_path / "run"), *whole]) == Code.OK, capsys.readouterr().err
    assert f"run holds. Of {len(found.evaluation.samples)} samples," in capsys.readouterr().out


def _train_without_goal(order: Order, capsys: pytest.CaptureFixture[str]) -> None:
    """Train by the command: it ends with weights that fit the model, and says that nothing is certified."""
    words = ["train", str(order.recipe), "--out", str(order.out), "--quick", *order.words]
    with torch.random.fork_rng(devices=[]):
        assert main(words) == Code.OK, capsys.readouterr().err
    assert "nothing is certified yet" in " ".join(capsys.readouterr().out.split())
    load.weights(load_recipe(order).model(), order.out / "model.safetensors")
    assert all(math.isfinite(entry["loss"]) for entry in Journal(order.out / "journal.jsonl").read())
    with pytest.raises(ArgumentError, match="has no goal to certify"):
        run(order, load_recipe(order), Team(torch.device("cpu")))
    # It claims nothing, so there is nothing to audit and nothing to write down.
    assert main(["audit", str(order.out)]) == Code.AUDIT_FAILED
    assert "claims nothing" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--json", str(order.out / "figures.json")]) == Code.USAGE
    assert "certifies nothing" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_the_quick_form_takes_few_steps_on_the_real_data(path: Path, tmp_path: Path) -> None:
    kind = recipe_class(path)
    if kind.needs_data:
        quick = kind(data=tmp_path).quick()
        # MNIST has 60,000 training images and CIFAR-10 50,000: --quick promises seconds, on a CPU too.
        assert quick.epochs * 60_000 / quick.batch <= 120


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_the_header_says_what_is_claimed_and_how_to_run_it(path: Path) -> None:
    words = path.read_text(encoding="utf-8").split('"""')[1]
    assert words.startswith("Claim: ")
    assert f"lipkit train recipes/{path.name}" in words
    assert all(part in words for part in ("Data: ", "Seeds: ", "Hardware: "))
    kind = recipe_class(path)
    # Without its data a recipe is refused before anything is read.
    if kind.needs_data:
        assert "--data FOLDER" in words
        with pytest.raises(ArgumentError, match="needs --data"):
            make_recipe(kind, ())


@pytest.mark.parametrize("path", RECIPES, ids=NAMES)
def test_every_field_can_be_set_from_the_command_line(path: Path, tmp_path: Path) -> None:
    kind = recipe_class(path)
    whole = kind(data=tmp_path)
    for field in dataclasses.fields(kind):
        value = getattr(whole, field.name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(getattr(value, "value", value))
        again = make_recipe(
            kind, (f"--data={tmp_path}", *((f"--{field.name}={text}",) if field.name != "data" else ()))
        )
        assert getattr(again, field.name) == value


def recipe_module(stem: str) -> Any:
    """The module of a recipe, for the parts that it is made of."""
    (path,) = (one for one in RECIPES if one.stem == stem)
    return sys.modules[recipe_class(path).__module__]


def test_low_frequencies_are_those_of_the_cosine_transform() -> None:
    cosines = recipe_module("private_isometry").cosines
    # scipy is the other implementation; both round a few sums of 28 numbers below 1.
    expected = scipy.fft.dct(np.eye(28), norm="ortho", axis=0)[:16]
    assert np.abs(cosines(28, 16).numpy() - expected).max() < 1e-14


def test_low_frequencies_of_colours_are_those_of_the_cosine_transform() -> None:
    recipe = make_recipe(recipe_class(ROOT / "recipes" / "private_cifar10.py"), ("--data=.", "--kept=5", "--chroma=3"))
    image = np.random.default_rng(0).standard_normal((3, 32, 32))
    red, green, blue = scipy.fft.dctn(image, norm="ortho", axes=(1, 2))
    axes = ((red + green + blue) / 3**0.5, 5), ((red - blue) / 2**0.5, 3), ((red - 2 * green + blue) / 6**0.5, 3)
    expected = [axis[i, j] for axis, kept in axes for i in range(kept) for j in range(kept) if i * i + j * j < kept**2]
    rows: Any = recipe
    found = rows.frequencies() @ torch.from_numpy(image).flatten()
    # Sums of 3,072 numbers near 1, rounded.
    assert np.abs(found.numpy() - np.array(expected)).max() < 1e-12


def test_scaled_features_move_no_farther_than_the_images() -> None:
    layer = recipe_module("private_mnist").ScaledScattering()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(20, 1, 28, 28, generator=generator)
    # Fine stripes excite the paths with the largest factors; small moves of them and of noise.
    stripes = (torch.arange(28) % 3 == 0).float().expand(1, 1, 28, 28)
    start = torch.cat([x, stripes, stripes.mT])
    moved = start + 0.01 * torch.randn(start.shape, generator=generator)
    with torch.no_grad():
        apart = (layer(moved) - layer(start)).norm(dim=1) / (moved - start).flatten(1).norm(dim=1)
    assert float(layer.factor.max()) <= 1
    assert 0.02 < float(apart.max()) <= 1


@pytest.mark.parametrize("wrong", ["--depth=8", "--pool=3", "--channels=8,8,8,8 --depth=1,1,1,1"])
def test_stages_that_do_not_fit_are_refused_before_anything_runs(wrong: str, tmp_path: Path) -> None:
    (path,) = (one for one in RECIPES if one.stem == "cifar10_shift")
    with pytest.raises(ArgumentError, match="stage"):
        make_recipe(recipe_class(path), (f"--data={tmp_path}", *wrong.split()))


def test_distortions_fade_and_the_share_of_the_end_is_checked(tmp_path: Path) -> None:
    (path,) = (one for one in RECIPES if one.stem == "cifar10_shift")
    recipe: Any = recipe_class(path)(data=tmp_path)
    x = torch.rand(64, 3, 32, 32)
    # The mean is subtracted and added again, twice: four roundings of numbers below 1.
    assert (recipe.distorted(x, 0.0) - x).abs().max() <= 4 * 2**-24
    assert (recipe.distorted(x) - x).abs().amax((1, 2, 3)).min() > 0.01
    with pytest.raises(ArgumentError, match="fade"):
        make_recipe(recipe_class(path), (f"--data={tmp_path}", "--fade=1.5"))
