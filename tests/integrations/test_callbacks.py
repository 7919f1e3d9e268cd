"""Callbacks log what is proven of the model as it is, and leave the training as it was."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import bounds
from lipkit.certify import accuracy, head_pairwise
from lipkit.cli.training.wandb_log import WandbRun
from lipkit.errors import ArgumentError, LipkitError
from lipkit.integrations import TrainingWatch, huggingface_callback, lightning_callback
from support.unchecked import unchecked


def made() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    x = torch.randn(30, 4)
    return model, x, torch.arange(30) % 3


def test_a_watch_says_what_an_evaluation_says_and_leaves_the_model_alone():
    model, x, y = made()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = TrainingWatch(x, y, [0.01, 0.1])(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        bound = head_pairwise(model.eval(), x[:1], bounds.DAG())
        whole = lipkit.lipschitz(model, x[:1])
    shares = accuracy(model, [(x, y)], bound, [0.01, 0.1]).overall
    assert found == {
        "pairwise_lipschitz": float(bound.value.max()), "clean": shares.clean.count / 30,
        "certified@0.01": shares.certified[0].count / 30, "certified@0.1": shares.certified[1].count / 30,
    }  # fmt: skip
    # A difference of two scores is steeper than the map by a factor of sqrt(2) at most.
    assert whole.lower is not None
    assert found["pairwise_lipschitz"] > 0


def test_a_watch_refuses_no_samples_and_no_radii():
    _, x, y = made()
    with pytest.raises(ArgumentError, match="at least one sample"):
        TrainingWatch(x[:0], y[:0], [0.1])
    with pytest.raises(ArgumentError, match="`eps` lists radii"):
        TrainingWatch(x, y, [])
    array: Any = x.numpy()
    with unchecked(), pytest.raises(ArgumentError, match=r"`inputs` of a watch are a torch\.Tensor, got a ndarray"):
        TrainingWatch(array, y, [0.1])
    numbers: Any = y.tolist()
    with unchecked(), pytest.raises(ArgumentError, match=r"`labels` of a watch are a torch\.Tensor, got a list"):
        TrainingWatch(x, numbers, [0.1])


def test_the_classifier_is_named_by_a_function_and_measured_before_the_first_epoch():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    _, x, y = made()
    watch, word = TrainingWatch(x, y, [0.1]), "core"
    wrong: Any = word
    with unchecked(), pytest.raises(ArgumentError, match=r"`model_of` is a function .* got 'core'"):
        huggingface_callback(watch, wrong)
    callback: Any = huggingface_callback(watch, lambda whole: whole)

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    state = transformers.TrainerState()
    with pytest.raises(LipkitError):
        callback.on_train_begin(None, state, None, model=nn.Sequential(Square(), nn.Linear(4, 3)))
    callback.on_train_begin(None, state, None, model=nn.Linear(4, 3))
    assert not state.log_history


def test_the_trainer_of_huggingface_gets_the_numbers_of_each_epoch():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, x, y = made()
    written: list[dict[str, Any]] = []
    watch = TrainingWatch(x, y, [0.1])
    callback: Any = huggingface_callback(watch, lambda whole: whole, lambda entry: written.append(dict(entry)))
    state = transformers.TrainerState(epoch=2.0, global_step=7)
    callback.on_epoch_end(None, state, None, model=model)
    assert state.log_history == written == [{**watch(model), "epoch": 2.0, "step": 7}]
    other = transformers.TrainerState(is_world_process_zero=False)
    callback.on_epoch_end(None, other, None, model=model)
    assert not other.log_history


# Lightning uses what torch calls deprecated.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_lightning_logs_the_numbers_after_each_epoch(tmp_path: Path):
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    model, x, y = made()

    class Whole(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    watch = TrainingWatch(x, y, [0.1])
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 10)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[lightning_callback(watch, lambda module: module.get_submodule("net"))],
    )  # fmt: skip
    trainer.fit(Whole(), data)
    assert {name: float(value) for name, value in trainer.callback_metrics.items()} == pytest.approx(
        watch(model), rel=1e-6
    )


def history(folder: Path) -> list[dict[str, Any]]:
    """The entries in the one file of a run that is kept offline, read as W&B writes them: framed protocol buffers."""
    (file,) = folder.rglob("*.wandb")
    until = time.monotonic() + 60
    # A process of W&B writes the file, and may still be at it when `finish` has answered; its last record is the exit.
    while True:
        records = read_records(file.read_bytes())
        if (records and records[-1].WhichOneof("record_type") == "exit") or time.monotonic() > until:
            break
        time.sleep(0.1)
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def read_records(data: bytes) -> list[Any]:
    """The whole records in a file; one as small as this has no others."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    # A frame is a checksum, its length, its kind and a record.
    at, found = 7, list[Any]()
    while at + 7 <= len(data):
        size, record = int.from_bytes(data[at + 4 : at + 6], "little"), proto.Record()
        if at + 7 + size > len(data):
            break
        record.ParseFromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        found.append(record)
    return found


@pytest.mark.slow
def test_wandb_keeps_the_entries_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = WandbRun(tmp_path / "log", "lipkit-tests")
    run({"step": 3, "loss": 0.5, "constant": None})
    run({"step": 5, "loss": 0.25, "constant": 2.0})
    run.close()
    entries = [
        {key: entry[key] for key in ("_step", "loss", "constant") if key in entry} for entry in history(tmp_path)
    ]
    assert entries == [{"_step": 3, "loss": 0.5}, {"_step": 5, "loss": 0.25, "constant": 2.0}]


@pytest.mark.slow
def test_a_run_of_wandb_that_cannot_begin_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(
        ArgumentError, match=r"^--wandb a/b cannot begin a run: Invalid project name.*WANDB_MODE=offline"
    ):
        WandbRun(tmp_path, "a/b")


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, x, y = made()
    watch = TrainingWatch(x, y, [0.1])
    for package in ("transformers", "lightning", "lightning.pytorch", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ArgumentError, match=r"needs transformers; pip install 'transformers\[torch\]'"):
        huggingface_callback(watch, lambda model: model)
    with pytest.raises(ArgumentError, match=r"needs lightning; pip install 'lipkit\[lightning\]'"):
        lightning_callback(watch)
    with pytest.raises(ArgumentError, match=r"needs wandb; pip install 'lipkit\[wandb\]'"):
        WandbRun(tmp_path, "project")
