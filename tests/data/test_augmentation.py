"""Random changes of images: what they do, one image at a time, and that they follow the seed."""

import pytest
import torch

from lipkit.data import cropped, flipped
from lipkit.errors import ArgumentError


def test_flips_about_half_and_changes_nothing_else() -> None:
    torch.manual_seed(0)
    x = torch.rand(400, 2, 3, 5)
    y = flipped(x)
    mirrored = torch.tensor([torch.equal(a, b.flip(2)) for a, b in zip(y, x, strict=True)])
    kept = torch.tensor([torch.equal(a, b) for a, b in zip(y, x, strict=True)])
    assert bool((mirrored ^ kept).all())
    # Five standard deviations of a fair coin.
    assert abs(int(mirrored.sum()) - 200) <= 50


def test_crops_are_moves_with_zeros_coming_in() -> None:
    torch.manual_seed(0)
    x = torch.rand(200, 2, 4, 6) + 0.5
    y = cropped(x, 2)
    seen: set[tuple[int, int]] = set()
    for a, b in zip(y, x, strict=True):
        padded = torch.zeros(2, 8, 10)
        padded[:, 2:6, 2:8] = b
        places = [(i, j) for i in range(5) for j in range(5) if torch.equal(a, padded[:, i : i + 4, j : j + 6])]
        assert len(places) == 1
        seen.update(places)
    # Of 25 places, one is missed by 200 draws with probability 0.007.
    assert len(seen) >= 24
    assert torch.equal(cropped(x, 0), x)


def test_follows_the_seed() -> None:
    x = torch.rand(5, 1, 4, 4)
    torch.manual_seed(3)
    first = cropped(flipped(x), 1)
    torch.manual_seed(3)
    assert torch.equal(cropped(flipped(x), 1), first)


def test_refuses_a_negative_frame() -> None:
    with pytest.raises(ArgumentError, match="got -1"):
        cropped(torch.rand(1, 1, 2, 2), -1)
