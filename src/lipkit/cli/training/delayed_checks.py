"""Flags on a GPU that are read later, so that the program need not wait for them at once."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor


def read_later(flag: Bool[Tensor, ""]) -> Callable[[], bool]:
    """Order a copy of a flag now, and give a function that reads it later.

    Reading waits for the work launched before this call, and not for work launched after it. `bool(flag)` would wait
    in every step, with the device idle until the next launch.
    """
    if flag.device.type != "cuda":
        return lambda: bool(flag)
    here = torch.empty((), dtype=torch.bool, pin_memory=True)
    here.copy_(flag, non_blocking=True)
    copied = torch.cuda.Event()
    # The stream of the flag's device, which need not be the current one.
    copied.record(torch.cuda.current_stream(flag.device))

    def read() -> bool:
        copied.synchronize()
        return bool(here)

    return read
