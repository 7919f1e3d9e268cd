"""The real sets, where a folder has them: read whole, and the published content byte for byte."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lipkit.data import Examples, adbench, cifar10, fashion_mnist, mnist


def folder(name: str) -> Path:
    """A folder of real data, or a reason why there is none."""
    if "LIPKIT_DATA" not in os.environ:
        pytest.skip("LIPKIT_DATA is not set to a folder with mnist/, fashion-mnist/, cifar10/ and adbench/")
    path = Path(os.environ["LIPKIT_DATA"]) / name
    if not path.is_dir():
        pytest.skip(f"{path} is missing")
    return path


@pytest.mark.parametrize(
    ("read", "name", "first"),
    [
        (mnist, "mnist", [7, 2, 1, 0, 4, 1, 4, 9]),
        (fashion_mnist, "fashion-mnist", [9, 2, 1, 1, 6, 1, 4, 6]),
        (cifar10, "cifar10", [3, 8, 8, 0, 6, 6, 1, 6]),
    ],
)
def test_a_test_set_is_the_published_one(read: Callable[..., Examples], name: str, first: list[int]):
    found = read(folder(name), train=False, official=True)
    assert len(found) == 10_000
    # The labels everyone sees who prints the first ones.
    assert found.labels[:8].tolist() == first
    assert (float(found.inputs.min()), float(found.inputs.max())) == (0, 1)


@pytest.mark.parametrize(("read", "name"), [(mnist, "mnist"), (fashion_mnist, "fashion-mnist")])
def test_a_training_set_is_the_published_one(read: Callable[..., Examples], name: str):
    assert len(read(folder(name), official=True)) == 60_000


def test_tables_are_read():
    found = adbench(folder("adbench") / "14_glass.npz")
    assert found.inputs.shape == (214, 7)
    assert torch.bincount(found.labels).tolist() == [205, 9]
