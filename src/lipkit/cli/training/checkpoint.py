"""The state of a run on disk: tensors in safetensors, the rest in JSON, written whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipkit._files import write_whole
from lipkit.cli.inputs.safetensors_file import tensors_from, tensors_to
from lipkit.errors import RecordError

# Marks the place of a tensor in the tree; no state of an optimizer has a key of this name.
_PLACE = "tensor of the checkpoint"


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a tree of mappings, lists, numbers, strings and tensors to one file, all of it or nothing."""
    tensors: dict[str, Tensor] = {}
    tree = _take_out_tensors(state, "", tensors)
    write_whole(path, tensors_to(tensors, {"tree": json.dumps(tree, allow_nan=True)}))


def load(path: Path) -> dict[str, Any]:
    """The tree that `save` wrote; damage of any kind is refused. Executes nothing. Cost: two passes over the file."""
    tensors, about = tensors_from(path, sealed=True)
    try:
        return _put_back_tensors(json.loads(about["tree"]), tensors)
    except (KeyError, ValueError, TypeError) as error:
        raise RecordError(f"{path} is no checkpoint of a run; remove it to start anew.") from error


def _take_out_tensors(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A copy: two names of one storage cannot be in one file.
        tensors[where] = value.detach().cpu().clone().contiguous()
        return {_PLACE: where}
    if isinstance(value, Mapping):
        pairs = [[key, _take_out_tensors(item, f"{where}/{key}", tensors)] for key, item in value.items()]
        return {"pairs": pairs}
    if isinstance(value, list | tuple):
        items = [_take_out_tensors(item, f"{where}/{i}", tensors) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"A checkpoint holds numbers, strings and tensors, got {type(value).__name__} at {where}.")


def _put_back_tensors(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == _PLACE:
        return tensors[content]
    if kind == "pairs":
        return {key: _put_back_tensors(item, tensors) for key, item in content}
    found = [_put_back_tensors(item, tensors) for item in content]
    return tuple(found) if kind == "tuple" else found


def random_state() -> dict[str, Tensor]:
    """The states of torch's generators."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found |= {f"cuda:{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return found


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Put them back; those of devices that are not here are left out."""
    torch.set_rng_state(state["cpu"])
    for i in range(torch.cuda.device_count()):
        if f"cuda:{i}" in state:
            torch.cuda.set_rng_state(state[f"cuda:{i}"], i)
