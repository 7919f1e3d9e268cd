"""Products with fewer digits while an attack searches."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def coarse_products(device: torch.device) -> Iterator[None]:
    """Let CUDA multiply float32 by tf32: several times faster, and what is found is judged in float64 anyway.

    The setting is that of the process; it is put back whatever happens. Other devices are left alone.
    """
    if device.type != "cuda":
        yield
        return
    # torch sets these attributes where no checker sees them.
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # pyright: ignore[reportAttributeAccessIssue]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
