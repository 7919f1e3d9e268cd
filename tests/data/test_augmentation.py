"""Random changes of images: what they do, one image at a time, and that they follow the seed."""

import math

import pytest
import torch

from lipkit.data import cropped, cut_and_mixed, flipped, turned_and_scaled
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
    # 200 draws miss one of 25 places with probability 0.007.
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


def test_boxes_come_from_the_next_image_and_targets_follow_their_area() -> None:
    torch.manual_seed(0)
    count = 300
    # Every image has its own colour, so that each pixel tells where it came from.
    x = torch.arange(count, dtype=torch.float32)[:, None, None, None].expand(count, 1, 10, 8)
    y, targets = cut_and_mixed(x, torch.eye(count), 0.6)
    shares = torch.zeros(count)
    for i in range(count):
        other = (i - 1) % count
        foreign = y[i, 0] == other
        assert bool((foreign | (y[i, 0] == i)).all())
        rows, cols = foreign.any(1), foreign.any(0)
        assert torch.equal(foreign, rows[:, None] & cols[None, :])
        shares[i] = foreign.float().mean()
        assert float(targets[i, other]) == pytest.approx(float(shares[i]))
        assert float(targets[i].sum()) == pytest.approx(1.0)
    # A draw changes an image unless its box is smaller than a pixel (about one in a hundred): five standard deviations.
    assert abs(int((shares > 0).sum()) - 0.6 * count) <= 5 * (count * 0.24) ** 0.5
    still, same = cut_and_mixed(x, torch.eye(count), 0.0)
    assert torch.equal(still, x)
    assert torch.equal(same, torch.eye(count))
    with pytest.raises(ArgumentError, match=r"got 1\.5"):
        cut_and_mixed(x, torch.eye(count), 1.5)


def test_a_chance_in_a_tensor_draws_the_same_boxes() -> None:
    x, targets = torch.rand(16, 3, 8, 8), torch.eye(16)
    torch.manual_seed(0)
    expected = cut_and_mixed(x, targets, 0.5)
    torch.manual_seed(0)
    found = cut_and_mixed(x, targets, torch.tensor(0.5))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_turns_and_scales_about_the_middle() -> None:
    torch.manual_seed(0)
    height, width = 41, 61
    rows, cols = torch.meshgrid(torch.arange(height) - 20.0, torch.arange(width) - 30.0, indexing="ij")
    # Bilinear interpolation of a linear function is exact, so the pictures of column and row say which point of the
    # source each pixel shows.
    x = torch.stack([cols, rows])[None].expand(60, 2, height, width)
    y = turned_and_scaled(x, 20.0, 0.25)
    angles, sizes = [], []
    for shown in y:
        # Where one step to the right in the result leads in the source, and one step down.
        right, down = shown[:, 20, 31] - shown[:, 20, 30], shown[:, 21, 30] - shown[:, 20, 30]
        # Rounding of coordinates in float32, which are as large as 61.
        assert float(shown[:, 20, 30].abs().max()) < 1e-4
        assert torch.allclose(down, torch.stack([-right[1], right[0]]), atol=1e-4)
        angles.append(math.degrees(math.atan2(float(right[1]), float(right[0]))))
        sizes.append(float(right.norm()))
    # 60 draws of a uniform number come within a tenth of both ends, but for probability 2 0.95^60 = 0.09 at most; the
    # seed is fixed.
    assert -20.01 < min(angles) < -14
    assert 14 < max(angles) < 20.01
    assert 0.799 < min(sizes) < 0.85
    assert 1.18 < max(sizes) < 1.251
    assert torch.allclose(turned_and_scaled(x, 0.0, 0.0), x, atol=1e-4)
    with pytest.raises(ArgumentError, match="got -1"):
        turned_and_scaled(x, -1.0, 0.0)
