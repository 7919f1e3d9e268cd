"""Exported programs from files (.pt2), with nothing in them executed but the operations of torch.

`torch.export.load` warns against untrusted files, and rightly so. As of torch 2.13 an archive may run code through
pickled weights, constants and custom objects (`pickle.loads`, `torch.load(weights_only=False)`), through its example
inputs (loaded safely first, and with pickle if that fails), through native libraries (`data/aotinductor`), through
expressions for symbolic shapes (evaluated as Python by sympy), through guards (compiled as Python), and through nodes
whose target is any function below `torch` or `operator`. So the archive is taken apart here: what is plain tensors and
known operations is written into a new archive, which torch then loads; all else is refused by name.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from lipkit.errors import ArgumentError

# The one model that torch.export.save writes.
_MODEL = "models/model.json"
_CONFIGS = {
    "data/weights/model_weights_config.json": "weight_",
    "data/constants/model_constants_config.json": "tensor_",
}
_EXAMPLE = "data/sample_inputs/model.pt"
_HEADERS = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
# Operations of torch's own library, less the one that opens files; and the selection from several results.
_OPERATION = re.compile(r"torch\.ops\.aten\.(?!from_file\b)\w+\.\w+|_operator\.getitem")
_CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"}
# Notes of a node that are kept; the others are dropped.
_NOTES = ("stack_trace", "nn_module_stack")


def program(path: Path) -> ExportedProgram:
    """The program that `torch.export.save` wrote with static shapes; refuses what could execute anything else.

    Sub-graphs, symbolic shapes, custom operators and custom objects are refused too: a network has none of them.
    """
    try:
        members = _members(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ArgumentError(
            f"{path} is no readable .pt2 archive ({error}); write one with torch.export.save."
        ) from error
    clean = _clean(members, path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in clean.items():
            archive.writestr(f"model/{name}", content)
    buffer.seek(0)
    try:
        return torch.export.load(buffer)
    except Exception as error:
        raise ArgumentError(
            f"{path} cannot be loaded by torch {torch.__version__} ({error}); export it again with this version."
        ) from error


def _members(path: Path) -> dict[str, bytes]:
    """The contents of the archive by name, without the name of the archive in front."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        inner = [name.partition("/")[2] for name in names]
        if len({name.partition("/")[0] for name in names}) != 1 or len(set(inner)) != len(inner):
            raise ArgumentError(f"{path} holds a name twice or several folders, which torch.export.save never writes.")
        return dict(zip(inner, map(archive.read, names), strict=True))


def _clean(members: dict[str, bytes], path: Path) -> dict[str, bytes]:
    def refuse(what: str) -> ArgumentError:
        return ArgumentError(
            f"{path} is refused: {what}, and loading that could execute code. Load the model in Python and give "
            "file.py:make_model with --weights instead."
        )

    missing = [name for name in (_MODEL, *_CONFIGS, _EXAMPLE, "archive_version") if name not in members]
    if missing:
        raise ArgumentError(f"{path} lacks {missing[0]}; write it anew with torch.export.save.")
    clean = {name: members[name] for name in _HEADERS if name in members}
    for config, prefix in _CONFIGS.items():
        folder = config.rpartition("/")[0]
        payloads: dict[str, Any] = _parse_json(members[config], path)["config"]
        for name, payload in payloads.items():
            file = str(payload["path_name"])
            if payload["use_pickle"] is not False or not re.fullmatch(rf"{prefix}\d+", file):
                raise refuse(f"{name} is stored as a pickled object")
            if f"{folder}/{file}" not in members:
                raise ArgumentError(f"{path} lacks {folder}/{file}; write it anew with torch.export.save.")
            clean[f"{folder}/{file}"] = members[f"{folder}/{file}"]
        clean[config] = json.dumps({"config": payloads}).encode()
    known = {*clean, _MODEL, _EXAMPLE}
    strange = [name for name in members if name not in known and not name.startswith("extra/")]
    if strange:
        raise refuse(f"it holds {strange[0]}")
    try:
        torch.load(io.BytesIO(members[_EXAMPLE]), weights_only=True)
    except Exception as error:
        raise refuse("its example inputs hold more than tensors") from error
    clean[_EXAMPLE] = members[_EXAMPLE]
    clean[_MODEL] = json.dumps(_check_graph(_parse_json(members[_MODEL], path), refuse)).encode()
    return clean


def _parse_json(content: bytes, path: Path) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise ArgumentError(f"{path} is damaged: {error}; write it anew with torch.export.save.") from error


def _check_graph(graph: Any, refuse: Any) -> Any:
    """The graph of the program, with the notes of its nodes cut down, if all of it is plain."""
    if graph.get("guards_code") or graph.get("range_constraints"):
        raise refuse("it has guards or symbolic shapes")
    for key, value, holder in _entries(graph):
        match key:
            case "expr_str" | "as_expr" | "as_custom_obj" | "as_graph":
                raise refuse(f"its graph has an entry {key}")
            case "target" | "as_operator" if not (isinstance(value, str) and _OPERATION.fullmatch(value)):
                raise refuse(f"its graph calls {str(value)[:80]}")
            case "in_spec" | "out_spec" if value is not None:
                strange = [kind for kind in _containers(value) if kind not in _CONTAINERS]
                if strange:
                    raise refuse(f"its arguments or results are in a container {str(strange[0])[:80]}")
            case "metadata" if isinstance(value, dict):
                holder[key] = {name: value[name] for name in _NOTES if name in value}
            case _:
                pass
    return graph


def _entries(data: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every entry of every object in JSON data, with the object that holds it."""
    waiting = [data]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key, value in list(one.items()):
                yield key, value, one
        waiting.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())


def _containers(spec: str) -> Iterator[object]:
    """The types of all containers in a description of arguments, which is JSON in a string."""
    for key, value, _ in _entries(json.loads(spec)):
        if key == "type":
            yield value
        elif key == "context" and isinstance(value, str) and "__enum__" in value:
            yield "with an enumeration"
