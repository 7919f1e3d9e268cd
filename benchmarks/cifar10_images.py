"""CIFAR-10 on a device at once, for benchmarks: from the published files, or from some of the sheets of tiles."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lipkit.data import cifar10

_TILE, _ON_SHEET = 32, 5000
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Images(NamedTuple):
    """Pixels in [0, 1] and labels of both splits."""

    train: Tensor
    labels: Tensor
    test: Tensor
    answers: Tensor


def load(folder: Path, device: str) -> Images:
    """All images of a folder, which holds what `lipkit.data.cifar10` reads, or sheets (see cifar10_from_sheets.py).

    Of the sheets any number may be there, as WebP or PNG: a sheet's number says which labels are its own.
    """
    found: list[Tensor] = []
    for train, split in ((True, "train"), (False, "test")):
        sheets = sorted(path for path in folder.glob(f"{split}-[0-9][0-9].*") if path.suffix in (".png", ".webp"))
        if not sheets:
            whole = cifar10(folder, train=train)
            found += [whole.inputs.to(device), whole.labels.to(device).long()]
            continue
        with ThreadPoolExecutor() as pool:
            pixels = np.concatenate(list(pool.map(_cut_tiles, sheets)))
        labels = np.load(folder / f"{split}-labels.npy", allow_pickle=False)
        first = [_ON_SHEET * int(path.stem[-2:]) for path in sheets]
        chosen = np.concatenate([labels[at : at + _ON_SHEET] for at in first])
        if len(chosen) != len(pixels):
            raise ValueError(f"{folder} has {len(pixels)} images of {split} and {len(chosen)} labels for them.")
        found += [torch.from_numpy(pixels).to(device).float() / 255, torch.from_numpy(chosen).to(device).long()]
    return Images(*found)


def standardised(images: Tensor) -> Tensor:
    """Each channel less its mean, over its deviation."""
    mean, deviation = (torch.tensor(row, device=images.device).view(3, 1, 1) for row in (MEAN, DEVIATION))
    return (images - mean) / deviation


def _cut_tiles(sheet: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(sheet) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    rows, columns = pixels.shape[0] // _TILE, pixels.shape[1] // _TILE
    tiles = pixels.reshape(rows, _TILE, columns, _TILE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(-1, 3, _TILE, _TILE)
