"""Gradients, also where the caller is in inference mode; what was made there has none and is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lipkit.errors import ArgumentError


@contextmanager
def gradients_allowed(of: object) -> Iterator[None]:
    """Within this block torch records gradients; tensors of inference mode inside of a field or a module are refused.

    Inputs of inference mode take no gradient either: give clones that were made within the block.
    """
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        raise ArgumentError(
            f"This {type(of).__name__} was made in torch.inference_mode(), whose tensors have no gradients; "
            "make it outside of that block."
        ) from error
