"""Images changed at random, each on its own, on the device they are on."""

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError

Images = Float[Tensor, "batch channels height width"]


def flipped(images: Images) -> Images:
    """Left and right exchanged with probability a half."""
    return torch.where(torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5, images.flip(3), images)


def cropped(images: Images, frame: int) -> Images:
    """Cut out of a frame of `frame` zeros at a random place: moved by up to `frame` pixels in each direction."""
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
