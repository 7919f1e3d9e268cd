"""CIFAR-10 as sheets of tiles."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from lipkit.data import cifar10
from lipkit.errors import ArgumentError, RecordError

Image = pytest.importorskip("PIL.Image")

# Two rows of 40 tiles on the first sheet, one on the second.
IMAGES = np.random.default_rng(0).integers(0, 256, (120, 3, 32, 32), dtype=np.uint8)
LABELS = np.arange(120, dtype=np.uint8) % 10


def save(path: Path, images: np.ndarray) -> None:
    """Tile after tile, put where it belongs."""
    sheet = np.zeros((32 * (len(images) // 40), 32 * 40, 3), np.uint8)
    for place, image in enumerate(images):
        row, column = 32 * (place // 40), 32 * (place % 40)
        sheet[row : row + 32, column : column + 32] = image.transpose(1, 2, 0)
    Image.fromarray(sheet).save(path, lossless=True, quality=0, method=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "train-00.webp", IMAGES[:80])
    save(tmp_path / "train-01.webp", IMAGES[80:])
    np.save(tmp_path / "train-labels.npy", LABELS)
    stated = {"n": 120, "sha256_images_nchw_uint8": hashlib.sha256(IMAGES.tobytes()).hexdigest()}
    (tmp_path / "meta.json").write_text(json.dumps({"train": stated}))
    return tmp_path


def test_tiles_are_read_row_by_row(folder: Path):
    found = cifar10(folder)
    assert torch.equal(found.inputs, torch.from_numpy(IMAGES) / torch.tensor(255.0))
    assert found.labels.tolist() == LABELS.tolist()


def test_a_missing_sheet_is_noticed(folder: Path):
    (folder / "train-01.webp").unlink()
    np.save(folder / "train-labels.npy", LABELS[:80])
    with pytest.raises(RecordError, match=r"train-\*.webp hold 80 images .* but meta.json states 120"):
        cifar10(folder)


def test_a_changed_pixel_is_noticed(folder: Path):
    changed = IMAGES[80:].copy()
    changed[3, 0, 0, 0] ^= 1
    save(folder / "train-01.webp", changed)
    with pytest.raises(RecordError, match="SHA-256"):
        cifar10(folder)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_cut_sheet_is_named(folder: Path, share: float):
    path = folder / "train-01.webp"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(RecordError, match=r"train-01.webp is no intact WebP picture"):
        cifar10(folder)


def test_other_files_that_do_not_fit_are_named(folder: Path):
    np.save(folder / "train-labels.npy", LABELS[:-1])
    with pytest.raises(RecordError, match=r"train-labels.npy has shape \(119,\) and type uint8, expected \(120,\)"):
        cifar10(folder)
    np.save(folder / "train-labels.npy", LABELS + 1)
    with pytest.raises(RecordError, match="10 in labels at place 9"):
        cifar10(folder)
    np.save(folder / "train-labels.npy", LABELS)
    for text, complaint in [("{", "no intact JSON"), ('{"train": {"n": 120}}', "does not state"), ("[]", "not state")]:
        (folder / "meta.json").write_text(text)
        with pytest.raises(RecordError, match=f"meta.json.*{complaint}"):
            cifar10(folder)
    (folder / "meta.json").unlink()
    with pytest.raises(ArgumentError, match=r"meta.json cannot be read"):
        cifar10(folder)


def test_a_sheet_of_another_size_is_refused(folder: Path):
    Image.fromarray(np.zeros((32, 64, 3), np.uint8)).save(folder / "train-01.webp", lossless=True)
    with pytest.raises(RecordError, match=r"train-01.webp has 64 x 32 pixels, expected a width of 1280"):
        cifar10(folder)


def test_a_part_is_not_official(folder: Path):
    with pytest.raises(RecordError, match="has sheets of 120 images, and the original has 50000"):
        cifar10(folder, official=True)
