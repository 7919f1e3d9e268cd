"""Tensors in a file that executes nothing: the only file that knows safetensors."""

import mmap
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from lipkit._checksums import BLANK, FIELD, require_seal, seal
from lipkit.errors import ArgumentError


def tensors_to(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file with the tensors, strings that say what they are, and a checksum of all that."""
    from safetensors.torch import save

    return seal(save(dict(tensors), {**(about or {}), FIELD: BLANK}))


def model_to(model: nn.Module) -> bytes:
    """The bytes of a file with the weights of a model; the same weights give the same bytes."""
    # Copies: two names of one storage cannot be in one file.
    return tensors_to({name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()})


def tensors_from(path: Path, sealed: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its strings; an `ArgumentError` for a file that is missing, cut off or another.

    A checksum is compared first, where there is one. Cost: one pass for the checksum, one for the tensors.

    Args:
        path: The file.
        sealed: Whether it must have a checksum: `tensors_to` writes one, other programs do not.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as missing:
        raise ArgumentError(f"Reading {path} needs safetensors; pip install 'lipkit[cli]' brings it.") from missing
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(file.metadata() or {})
            if about.pop(FIELD, None) is not None or sealed:
                with path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    require_seal(content, str(path), "take an intact copy, or remove it and make it again")
            # The file is no mapping, though it has keys.
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, about
    except (SafetensorError, OSError) as error:
        raise ArgumentError(f"{path} is no readable safetensors file ({error}).") from error
