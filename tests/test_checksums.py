"""Checksums inside files: every flipped bit is refused, or changes nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipkit._checksums import BLANK, FIELD, from_sealed_json, require_seal, seal, to_sealed_json
from lipkit.certify import Records, SampleResult
from lipkit.cli.inputs import load
from lipkit.cli.inputs.safetensors_file import model_to
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.training import checkpoint
from lipkit.cli.training.journal import Journal
from lipkit.errors import ArgumentError, LipkitError, RecordError

SETTINGS = {"eps": [0.5], "name": "Größe"}
RUN = Identity("Digits", "abc", {"seed": "3"}, "lipkit train digits.py")


def lines(folder: Path) -> Path:
    Records(folder, SETTINGS).append([SampleResult(0, 1, 1, 0.25, (True,)), SampleResult(1, 0, 0, float("inf"))])
    return folder / "samples-0000.jsonl"


def settings(folder: Path) -> Path:
    Records(folder, SETTINGS)
    return folder / "settings.json"


def journal(folder: Path) -> Path:
    for step in (1, 2):
        Journal(folder / "journal.jsonl").add({"step": step, "loss": 0.5 / step})
    return folder / "journal.jsonl"


def state(folder: Path) -> Path:
    checkpoint.save(folder / "bound.safetensors", {"log_value": torch.tensor([0.5, 0.25]), "kind": "UPPER"})
    return folder / "bound.safetensors"


def weights(folder: Path) -> Path:
    torch.manual_seed(0)
    (folder / "model.safetensors").write_bytes(model_to(nn.Linear(2, 2)))
    return folder / "model.safetensors"


def identity(folder: Path) -> Path:
    RUN.settle(folder, writes=True)
    return folder / "run.json"


def read_lines(path: Path) -> object:
    # What a changed end of the last line leaves is cut off, and found again by the evaluation.
    found = Records(path.parent, SETTINGS).read()
    whole = {0: SampleResult(0, 1, 1, 0.25, (True,)), 1: SampleResult(1, 0, 0, float("inf"))}
    return {**whole, **found}


def read_journal(path: Path) -> object:
    found = {entry["step"]: entry for entry in Journal(path).read()}
    return {2: {"step": 2, "loss": 0.25}, **found}


def read_weights(path: Path) -> object:
    model = nn.Linear(2, 2)
    load.weights(model, path)
    return {name: value.tolist() for name, value in model.state_dict().items()}


def read_state(path: Path) -> object:
    found = checkpoint.load(path)
    return {**found, "log_value": found["log_value"].tolist()}


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "results": (lines, read_lines),
    "settings": (settings, lambda path: Records(path.parent, SETTINGS) and None),
    "journal": (journal, read_journal),
    "checkpoint": (state, read_state),
    "weights": (weights, read_weights),
    "run": (identity, lambda path: Identity.read(path.parent)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    write, read = KINDS[kind]
    path = write(tmp_path)
    whole = path.read_bytes()
    honest = read(path)
    refused = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            assert read(path) == honest, f"another content after a change of byte {place}"
        except LipkitError:
            refused += 1
    # Harmless are a last end of line, and the name of the checksum in weights, which those of others do not have.
    assert len(whole) - refused <= (24 if kind == "weights" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_file_without_checksum_is_refused_but_for_weights(kind: str, tmp_path: Path) -> None:
    write, read = KINDS[kind]
    path = write(tmp_path)
    old = path.read_bytes().replace(b'"sha256"', b'"no-sum"')
    path.write_bytes(old)
    if kind == "weights":
        read(path)
        return
    with pytest.raises(RecordError, match=f"{path.name}.* has no checksum: it is damaged, or of an earlier version; "):
        read(path)


@pytest.mark.parametrize("indent", [None, 1])
def test_plain_data_come_back(indent: int | None) -> None:
    data: dict[str, Any] = {"a": [1, 2.5, None], "b": {"sha256": "f" * 64}, "c": '"sha256": "' + "0" * 64, "d": "ß"}
    assert from_sealed_json(to_sealed_json(data, indent), "x", "y") == data


def test_damage_is_said_with_what_to_do() -> None:
    content = to_sealed_json({"a": 1})
    with pytest.raises(RecordError, match=r"^file does not fit its checksum: it was changed .*; make it again.$"):
        require_seal(content.replace(b"1}", b"2}"), "file", "make it again")
    with pytest.raises(RecordError, match=r"^file has no checksum: .*; make it again.$"):
        from_sealed_json(b"[1]", "file", "make it again")


def test_the_checksum_is_that_of_the_file_with_a_blank_in_its_place() -> None:
    import hashlib

    content = to_sealed_json({"a": 1})
    blank = json.dumps({FIELD: BLANK, "a": 1}).encode()
    assert json.loads(content)[FIELD] == hashlib.sha256(blank).hexdigest()
    assert seal(blank) == content


def test_the_same_weights_give_the_same_bytes() -> None:
    model = nn.Linear(3, 2)
    assert model_to(model) == model_to(model)


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is no readable safetensors file"):
        checkpoint.load(tmp_path / "nothing")
