"""Models, weights and arrays from files; no pickle is ever executed."""

import importlib.util
import inspect
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from lipkit._seeds import check_seed
from lipkit.cli.inputs.checkpoints import find_state
from lipkit.cli.inputs.exported_programs import program
from lipkit.cli.inputs.safetensors_file import tensors_from
from lipkit.data._numpy_files import parse_npy
from lipkit.errors import ArgumentError, LipkitError, RecordError

# The first bytes of what torch.save writes: an archive, or before torch 1.6 a pickle of this number.
_ZIP = b"PK\x03\x04"
_LEGACY = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"


def model(target: str) -> nn.Module | ExportedProgram:
    """The model that `path/to/file.py:name` or `path/to/program.pt2` names.

    The Python file is executed, like any program one runs; `name` is a model, or is called without arguments to make
    one. A program is data and executes nothing (see `exported_programs`).
    """
    if target.endswith(".pt2"):
        return program(_check_exists(Path(target)))
    file, colon, name = target.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ArgumentError(f"The model {target!r} is neither path/to/file.py:make_model nor path/to/program.pt2.")
    module = python_file(Path(file))
    if name not in vars(module):
        made = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ArgumentError(f"{file} has no {name}; it has {', '.join(made) or 'nothing that could make a model'}.")
    found = vars(module)[name]
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise ArgumentError(f"{target} is a {type(found).__name__}; name a model or a function that makes one.")
        if missing := _required_arguments(found):
            raise ArgumentError(
                f"{target} wants the arguments {', '.join(missing)}; name a function without arguments that calls it."
            )
        with _explain_errors(target):
            found = found()
    if not isinstance(found, nn.Module):
        raise ArgumentError(f"{target} made a {type(found).__name__}, expected a torch.nn.Module.")
    return found


def model_with_weights(target: str, path: Path | None, seed: int) -> nn.Module | ExportedProgram:
    """The model that `target` names with the weights of a file, where one is given; `seed` draws what it draws."""
    torch.manual_seed(check_seed(seed, "--seed"))
    made = model(target)
    if path is not None:
        if not isinstance(made, nn.Module):
            raise ArgumentError("A .pt2 program has its own weights; leave out --weights.")
        weights(made, path)
    return made


def print_weights_source(target: str, path: Path | None, made: nn.Module | ExportedProgram) -> None:
    """Say on standard error where weights come from that no file was named for."""
    # Figures of a random network look like those of a trained one.
    if path is None and isinstance(made, nn.Module) and made.state_dict():
        print(f"No --weights: the weights are those that {target} makes.", file=sys.stderr)


def python_file(file: Path) -> object:
    """The module of a Python file, which is executed."""
    _check_exists(file)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # As when Python runs a file: what lies beside it can be imported, and classes find their module.
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        with _explain_errors(str(file)):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent.resolve()))
    return module


def _required_arguments(function: Callable[..., object]) -> list[str]:
    """The arguments that a function or a class cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        # Some that are written in C do not say.
        return []
    return [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """An error of the user's code as one sentence with its place; those of lipkit are sentences already."""
    try:
        yield
    except LipkitError:
        raise
    except SyntaxError as error:
        raise ArgumentError(
            f"{what} is no Python: {error.msg} (line {error.lineno} of {error.filename}); repair it."
        ) from error
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ArgumentError(
            f"{what} stopped with {type(error).__name__}: {error} (line {last.lineno} of {last.filename}); "
            "repair it, or run it with python to see more."
        ) from error


def weights(into: nn.Module, path: Path) -> None:
    """Put a state dictionary (.safetensors, .pt, .pth) into a model; every name and shape must fit.

    A `.pt` file is read with `weights_only=True`: a file that holds more than tensors is refused, not executed. It may
    be that of a training, with the weights somewhere inside (`find_state`); where they were is said.
    """
    wanted = into.state_dict()
    found = find_state(_content(_check_exists(path)), wanted, path)
    if found.keys or found.prefix or found.not_needed:
        print(f"The weights are those of {path} {found}.", file=sys.stderr)
    given = found.tensors
    for key, value in given.items():
        if value.shape != wanted[key].shape:
            shapes = f"{tuple(value.shape)} for {key}, which has shape {tuple(wanted[key].shape)} in the model"
            raise ArgumentError(f"{path} does not fit the model: it holds {shapes}.")
    into.load_state_dict({**{key: wanted[key] for key in found.not_needed}, **given})


def _content(path: Path) -> object:
    """The contents of a file of weights, nothing of it executed; its bytes say of which kind it is, not its name."""
    with path.open("rb") as file:
        start = file.read(64)
    if path.suffix == ".safetensors" or _begins_safetensors(start, path.stat().st_size):
        return tensors_from(path)[0]
    if not start.startswith(_ZIP) and _LEGACY not in start:
        raise ArgumentError(
            f"{path} is no file of torch.save and no safetensors file, or it is damaged; "
            'write one with torch.save(model.state_dict(), "w.pt").'
        )
    try:
        with warnings.catch_warnings():
            # Remarks on how the file was written; what is wrong with it is said below.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ArgumentError(
            f"{path} holds more than tensors, and reading that would execute code; "
            "save model.state_dict() alone, or a .safetensors file. If you trust the file: "
            f'torch.save(torch.load({str(path)!r}, weights_only=False)["model_state_dict"], "w.pt"), '
            "with the key under which it has the weights."
        ) from error
    # Damaged bytes make its reader fail in many ways: KeyError, IndexError, struct.error, ...
    except Exception as error:
        raise ArgumentError(f"{path} is no readable file of weights ({type(error).__name__}: {error}).") from error


def _begins_safetensors(start: bytes, size: int) -> bool:
    """Whether a file begins as safetensors do: the length of a JSON object in eight bytes, and the object."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= size - 8


def array(path: Path) -> Tensor:
    """The numbers of a .npy file, in float64."""
    try:
        return torch.from_numpy(parse_npy(str(path), _check_exists(path).read_bytes()).astype(np.float64))
    except (OSError, RecordError) as error:
        raise ArgumentError(f"{path} is no readable .npy file ({error}); write one with numpy.save.") from error


def _check_exists(path: Path) -> Path:
    if not path.is_file():
        raise ArgumentError(f"There is no file {path}.")
    return path
