"""Tensors in a file that executes nothing: the only file that knows safetensors."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from lipkit.errors import ArgumentError


def tensors_to(tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file with the tensors, and strings that say what they are."""
    from safetensors.torch import save

    return save(dict(tensors), dict(about) if about else None)


def model_to(model: nn.Module) -> bytes:
    """The bytes of a file with the weights of a model; the same weights give the same bytes."""
    # Copies: two names of one storage cannot be in one file.
    return tensors_to({name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()})


def tensors_from(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and its strings; an `ArgumentError` for a file that is missing, cut off or another."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as missing:
        raise ArgumentError(f"Reading {path} needs safetensors; pip install 'lipkit[cli]' brings it.") from missing
    try:
        with safe_open(path, framework="pt") as file:
            # The file is no mapping, though it has keys.
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ArgumentError(f"{path} is no readable safetensors file ({error}).") from error
