"""Devices by the words of a command line."""

import torch

from lipkit.errors import ArgumentError


def device_of(name: str) -> torch.device:
    """A device by its name, if it is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(f"--device is cpu or cuda, got {name!r}.") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ArgumentError(f"There is no device {name} here; use --device cpu.")
    return device


def describe_device(device: torch.device) -> str:
    """The name of a GPU, or the number of threads of the CPU."""
    threads = torch.get_num_threads()
    words = f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else words
