"""Questions to a device whose answers are read later."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor


def asked(flag: Bool[Tensor, ""]) -> Callable[[], bool]:
    """How to read a flag later on: its copy is ordered now.

    So reading waits for what was launched before the question, and not for what is launched between it and the answer;
    `bool(flag)` would keep the device waiting for the next launch in every step.
    """
    if flag.device.type != "cuda":
        return lambda: bool(flag)
    here = torch.empty((), dtype=torch.bool, pin_memory=True)
    here.copy_(flag, non_blocking=True)
    copied = torch.cuda.Event()
    # Of the flag's device, which need not be the current one.
    copied.record(torch.cuda.current_stream(flag.device))

    def read() -> bool:
        copied.synchronize()
        return bool(here)

    return read
