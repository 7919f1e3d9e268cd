"""Sheets of tiles become the binary files of CIFAR-10, whole or not at all."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lipkit.data import cifar10
from support.repository import ROOT

Image = pytest.importorskip("PIL.Image")
PROGRAM = ROOT / "recipes" / "cifar10_from_sheets.py"
# Two rows of 40 tiles on the first sheet, one on the second; one row for testing.
IMAGES = np.random.default_rng(0).integers(0, 256, (160, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(160, dtype=np.uint8) % 10


def save(path: Path, images: np.ndarray) -> None:
    """Tile after tile, put where it belongs."""
    sheet = np.zeros((32 * (len(images) // 40), 32 * 40, 3), np.uint8)
    for place, image in enumerate(images):
        row, column = 32 * (place // 40), 32 * (place % 40)
        sheet[row : row + 32, column : column + 32] = image.transpose(1, 2, 0)
    Image.fromarray(sheet).save(path, lossless=True, quality=0, method=0)


@pytest.fixture
def sheets(tmp_path: Path) -> Path:
    folder = tmp_path / "sheets"
    folder.mkdir()
    save(folder / "train-00.webp", IMAGES[:80])
    save(folder / "train-01.webp", IMAGES[80:120])
    save(folder / "test-00.webp", IMAGES[120:])
    stated = {}
    for split, images, labels in (("train", IMAGES[:120], LABELS[:120]), ("test", IMAGES[120:], LABELS[120:])):
        np.save(folder / f"{split}-labels.npy", labels)
        stated[split] = {
            "n": len(images),
            "sha256_images_nchw_uint8": hashlib.sha256(images.tobytes()).hexdigest(),
        }
    (folder / "meta.json").write_text(json.dumps(stated))
    return folder


def convert(sheets: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Path]:
    """Run the program as its author does."""
    spec = importlib.util.spec_from_file_location("cifar10_from_sheets", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = sheets.parent / "out"
    monkeypatch.setattr(sys, "argv", ["cifar10_from_sheets.py", "--sheets", str(sheets), "--out", str(out)])
    return module.main(), out


def test_the_files_hold_every_tile_in_order(sheets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = convert(sheets, monkeypatch)
    assert code == 0
    train, test = cifar10(out, batch=24), cifar10(out, train=False, batch=40)
    truth = torch.from_numpy(IMAGES) / torch.tensor(255.0)
    assert torch.equal(train.inputs, truth[:120])
    assert torch.equal(test.inputs, truth[120:])
    assert train.labels.tolist() == LABELS[:120].tolist()
    assert test.labels.tolist() == LABELS[120:].tolist()


def _missing(folder: Path) -> None:
    (folder / "train-01.webp").unlink()
    np.save(folder / "train-labels.npy", LABELS[:80])


def _changed(folder: Path) -> None:
    changed = IMAGES[80:120].copy()
    changed[3, 0, 0, 0] ^= 1
    save(folder / "train-01.webp", changed)


def _cut(folder: Path) -> None:
    whole = (folder / "train-01.webp").read_bytes()
    (folder / "train-01.webp").write_bytes(whole[: len(whole) // 2])


DAMAGE = {
    "a missing sheet": (_missing, "hold 80 images of SHA-256"),
    "a changed pixel": (_changed, "but meta.json states 120"),
    "a cut sheet": (_cut, "train-01.webp"),
    "another size": (
        lambda folder: Image.fromarray(np.zeros((32, 64, 3), np.uint8)).save(folder / "train-01.webp", lossless=True),
        "train-01.webp has 64 x 32 pixels, expected a width of 1280",
    ),
    "a missing label": (
        lambda folder: np.save(folder / "train-labels.npy", LABELS[:119]),
        "train-labels.npy has shape (119,) and type uint8, expected (120,)",
    ),
    "no hashes": (lambda folder: (folder / "meta.json").write_text("{}"), "train"),
    "no sheets": (lambda folder: (folder / "test-00.webp").unlink(), "has no test-00.webp"),
}


@pytest.mark.parametrize(("damage", "complaint"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_sheets_leave_no_files(
    sheets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage, complaint: str
) -> None:
    damage(sheets)
    code, out = convert(sheets, monkeypatch)
    assert code == 1
    assert complaint in capsys.readouterr().err
    assert not out.exists()
