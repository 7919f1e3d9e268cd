"""Images changed at random, each on its own, on the device they are on."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError

Images = Float[Tensor, "batch channels height width"]


def flipped(images: Images) -> Images:
    """Left and right exchanged with probability a half."""
    return torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)


def cropped(images: Images, frame: int) -> Images:
    """Cut out of a frame of `frame` zeros at a random place: moved by up to `frame` pixels in each direction.

    Args:
        frame: Width of the frame of zeros, in pixels.
    """
    if frame < 0:
        raise ArgumentError(f"A frame has at least 0 pixels, got {frame}.")
    count, channels, height, width = images.shape
    framed = images.new_zeros(count, channels, height + 2 * frame, width + 2 * frame)
    framed[:, :, frame : frame + height, frame : frame + width] = images
    corner = torch.randint(0, 2 * frame + 1, (2, count, 1), device=images.device)
    rows = corner[0] + torch.arange(height, device=images.device)
    cols = corner[1] + torch.arange(width, device=images.device)
    which = torch.arange(count, device=images.device)[:, None, None]
    return framed.permute(0, 2, 3, 1)[which, rows[:, :, None], cols[:, None, :]].permute(0, 3, 1, 2)


def turned_and_scaled(images: Images, angle: float, factor: float) -> Images:
    """Turned by up to `angle` degrees and scaled by 1/(1 + factor) to 1 + factor about the middle; zeros outside.

    Args:
        angle: Largest turn, in degrees.
        factor: Largest enlargement, as a share: 0.1 for 10 %.
    """
    if not (angle >= 0 and factor >= 0):
        raise ArgumentError(f"Angle and factor are at least 0, got {angle} and {factor}.")
    turn, size = (2 * torch.rand(2, len(images), device=images.device) - 1).unbind()
    turn, size = math.radians(angle) * turn, (1 + factor) ** size
    across, down = size * turn.cos(), size * turn.sin()
    zero = torch.zeros_like(turn)
    ratio = images.shape[2] / images.shape[3]
    maps = torch.stack([across, -ratio * down, zero, down / ratio, across, zero], 1).view(-1, 2, 3)
    grid = torch.affine_grid_generator(maps, list(images.shape), align_corners=False)
    # 0 and 0: bilinear, zeros outside.
    return torch.grid_sampler(images, grid, 0, 0, align_corners=False)


def cut_and_mixed(
    images: Images, targets: Float[Tensor, "batch classes"], chance: float | Float[Tensor, ""]
) -> tuple[Images, Float[Tensor, "batch classes"]]:
    """With probability `chance` a box of each image is cut out of the next one, and the targets are mixed by area.

    The box has a share of the area that is uniform in [0, 1] and its centre anywhere, so that the border cuts some of
    it off; `targets` are probabilities and stay so. Reference: Yun et al. 2019 (CutMix); the next image of a shuffled
    batch is a random one.

    Args:
        targets: Probabilities of the classes of each image.
        chance: Probability that an image gets a box. A tensor is not checked, because that would wait for its device.
    """
    if not isinstance(chance, Tensor) and not 0 <= chance <= 1:
        raise ArgumentError(f"chance is a probability, got {chance}.")
    count, _, height, width = images.shape
    device = images.device
    share = torch.rand(count, 1, device=device)
    # A side of 0 leaves an image as it is.
    side = torch.where(torch.rand(count, 1, device=device) < chance, share.sqrt(), 0.0)
    centre = torch.rand(2, count, 1, device=device)
    down = ((torch.arange(height, device=device) + 0.5) / height - centre[0]).abs() < side / 2
    across = ((torch.arange(width, device=device) + 0.5) / width - centre[1]).abs() < side / 2
    box = down[:, :, None] & across[:, None, :]
    mixed = torch.where(box[:, None], images.roll(1, 0), images)
    area = box.to(targets.dtype).mean((1, 2))[:, None]
    return mixed, targets + area * (targets.roll(1, 0) - targets)
