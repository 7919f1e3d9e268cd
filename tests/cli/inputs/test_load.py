"""Files from elsewhere: what is data is loaded, what could execute anything is refused, and nothing is executed."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipkit.cli.inputs import load
from lipkit.cli.inputs.exported_programs import program
from lipkit.errors import ArgumentError


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def linear(seed: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(3, 2)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The folder that a trap makes; it must not be there after the test."""
    return tmp_path / "mark"


def test_the_trap_works(mark: Path):
    pickle.loads(pickle.dumps(Trap(mark)))
    assert mark.exists()


@pytest.mark.parametrize("wrap", [lambda trap: trap, lambda trap: {"weight": torch.zeros(2, 3), "bias": trap}])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_refused_and_not_executed(tmp_path: Path, mark: Path, wrap: Callable[[Trap], Any], zipped: bool):
    file = tmp_path / "w.pt"
    torch.save(wrap(Trap(mark)), file, _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        ArgumentError, match=r"holds more than tensors, and reading that would execute code.*If you trust"
    ):
        load.weights(linear(0), file)
    file.write_bytes(pickle.dumps(wrap(Trap(mark))))
    with pytest.raises(ArgumentError):
        load.weights(linear(0), file)
    assert not mark.exists()


@pytest.mark.parametrize("wrap", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}])
def test_weights_are_loaded(tmp_path: Path, wrap: Callable[[dict[str, Tensor]], Any]):
    torch.save(wrap(linear(1).state_dict()), tmp_path / "w.pt")
    model = linear(0)
    load.weights(model, tmp_path / "w.pt")
    assert torch.equal(model.weight, linear(1).weight)


@pytest.mark.parametrize(
    "content",
    [b"hello\nworld\n", b'{"weight": [1, 2]}', b"import torch\n", b"0.1 0.2\n", b"a", b"(((", pickle.dumps({"a": 1})],
)
def test_other_files_are_no_files_of_weights(tmp_path: Path, content: bytes):
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"is no file of torch\.save and no safetensors file, or it is damaged"):
        load.weights(linear(0), tmp_path / "w.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_weights_are_refused_wherever_they_are_cut(tmp_path: Path, zipped: bool):
    torch.save(linear(1).state_dict(), tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "w.pt").read_bytes()
    for end in range(0, len(whole) - 64, 41):
        (tmp_path / "w.pt").write_bytes(whole[:end])
        with pytest.raises(ArgumentError):
            load.weights(linear(0), tmp_path / "w.pt")


def test_safetensors_are_known_by_their_content(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(linear(1).state_dict(), tmp_path / "w.pt")
    model = linear(0)
    load.weights(model, tmp_path / "w.pt")
    assert torch.equal(model.weight, linear(1).weight)


def test_safetensors_are_loaded(tmp_path: Path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(linear(1).state_dict(), tmp_path / "w.safetensors")
    model = linear(0)
    load.weights(model, tmp_path / "w.safetensors")
    assert torch.equal(model.weight, linear(1).weight)
    (tmp_path / "w.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ArgumentError, match="no readable safetensors"):
        load.weights(model, tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"weight": torch.zeros(2, 3)}, "does not fit the model: it lacks bias; save"),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)}, "the model has no more; save"),
        ({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, r"holds \(3, 2\) for weight, which has shape \(2, 3\)"),
        ([torch.zeros(1)], "holds a list"),
        ({f"a{i}": torch.zeros(1) for i in range(9)}, "a4 and 4 more"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, state: object, words: str):
    model = linear(0)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ArgumentError, match=words):
        load.weights(model, tmp_path / "w.pt")
    assert torch.equal(model.weight, linear(0).weight)


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path):
    (tmp_path / "w.pt").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ArgumentError, match="no readable file of weights"):
        load.weights(linear(0), tmp_path / "w.pt")


def test_an_array_with_a_pickle_is_refused(tmp_path: Path, mark: Path):
    np.save(tmp_path / "x.npy", np.array([Trap(mark)], dtype=object), allow_pickle=True)
    with pytest.raises(ArgumentError, match=r"no readable \.npy"):
        load.array(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array(["a"]))
    with pytest.raises(ArgumentError, match="values of type <U1, expected numbers"):
        load.array(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([1, 2], dtype=np.int32))
    assert torch.equal(load.array(tmp_path / "x.npy"), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert not mark.exists()


class Scaled(nn.Module):
    """Parameters, a buffer that is not part of the state, a literal, and two results."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear(2)
        self.register_buffer("factor", torch.tensor([2.0, 3.0]), persistent=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.linear(x) * self.factor + torch.tensor([1.0, 2.0])
        return {"a": y, "b": y.chunk(2, 1)[0]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "scaled.pt2"
    torch.export.save(torch.export.export(Scaled(), (torch.ones(1, 3),)), path)
    return path


def test_a_program_is_loaded_as_it_was(saved: Path):
    found, expected = program(saved).module()(torch.ones(1, 3)), Scaled()(torch.ones(1, 3))
    assert torch.equal(found["a"], expected["a"])
    assert torch.equal(found["b"], expected["b"])


Members = dict[str, bytes]


def changed(saved: Path, target: Path, change: Callable[[Members], None]) -> Path:
    """A copy of the archive with something else in it."""
    with zipfile.ZipFile(saved) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"x/{name}", content)
    return target


def edited(name: str, change: Callable[[Any], None]) -> Callable[[Members], None]:
    def edit(members: Members) -> None:
        data = json.loads(members[name])
        change(data)
        members[name] = json.dumps(data).encode()

    return edit


MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


def trapped(path: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Trap(path), buffer)
    return buffer.getvalue()


def pickled_weight(mark: Path) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        edited(WEIGHTS, lambda data: data["config"]["linear.weight"].update(use_pickle=True))(members)
        members["data/weights/weight_0"] = trapped(mark)

    return change


def opaque_constant(mark: Path) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        edited(CONSTANTS, lambda data: data["config"].update(trap=entry))(members)
        members["data/constants/opaque_obj_0"] = pickle.dumps(Trap(mark))

    return change


def escaping_path(_: Path) -> Callable[[Members], None]:
    return edited(WEIGHTS, lambda data: data["config"]["linear.weight"].update(path_name="../sample_inputs/model.pt"))


def node(change: Callable[[Any], None]) -> Callable[[Path], Callable[[Members], None]]:
    return lambda _: edited(MODEL, lambda data: change(data["graph_module"]["graph"]["nodes"][0]))


def calls(target: str) -> Callable[[Path], Callable[[Members], None]]:
    return node(lambda one: one.update(target=target))


def specified(data: Any) -> None:
    call = data["graph_module"]["module_call_graph"][0]["signature"]
    strange = {"type": "collections.defaultdict", "context": '{"default_factory_module": "os"}', "children_spec": []}
    call["in_spec"] = json.dumps([1, strange])


ATTACKS: dict[str, tuple[Callable[[Path], Callable[[Members], None]], str]] = {
    "pickled weight": (pickled_weight, "linear.weight is stored as a pickled object"),
    "pickled object": (opaque_constant, "trap is stored as a pickled object"),
    "path": (escaping_path, "stored as a pickled object"),
    "old weights": (lambda mark: lambda m: m.update({"data/weights/model.pt": trapped(mark)}), "data/weights/model.pt"),
    "example": (lambda mark: lambda m: m.update({"data/sample_inputs/model.pt": trapped(mark)}), "example inputs"),
    "library": (lambda _: lambda m: m.update({"data/aotinductor/model/a.so": b""}), "data/aotinductor/model/a.so"),
    "second model": (lambda _: lambda m: m.update({"models/other.json": m[MODEL]}), "models/other.json"),
    "system": (calls("torch.os.system"), r"calls torch\.os\.system"),
    "load": (calls("torch.load"), r"calls torch\.load"),
    "methodcaller": (calls("_operator.methodcaller"), r"calls _operator\.methodcaller"),
    "file": (calls("torch.ops.aten.from_file.default"), "from_file"),
    "behind": (calls("torch.ops.aten.add.Tensor.__globals__"), "__globals__"),
    "expression": (node(lambda one: one.update(more={"expr_str": "__import__('os')"})), "entry expr_str"),
    "guards": (lambda _: edited(MODEL, lambda data: data.update(guards_code=["print(1)"])), "guards"),
    "container": (lambda _: edited(MODEL, specified), "container collections.defaultdict"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_archive_that_could_execute_is_refused(saved: Path, tmp_path: Path, mark: Path, attack: str):
    change, words = ATTACKS[attack]
    with pytest.raises(ArgumentError, match=f"is refused: .*{words}.*could execute code"):
        program(changed(saved, tmp_path / "bad.pt2", change(mark)))
    assert not mark.exists()


def test_the_attack_would_work_without_the_check(saved: Path, tmp_path: Path, mark: Path):
    bad = changed(saved, tmp_path / "bad.pt2", ATTACKS["pickled weight"][0](mark))
    # torch cannot use what the trap returns, but by then it has been executed.
    with pytest.raises(Exception, match=r".*"):
        torch.export.load(bad)
    assert mark.exists()


def test_a_damaged_archive_is_refused(saved: Path, tmp_path: Path):
    (tmp_path / "no.pt2").write_bytes(b"nonsense")
    with pytest.raises(ArgumentError, match=r"no readable \.pt2 archive"):
        program(tmp_path / "no.pt2")
    for name in (MODEL, "data/weights/weight_0"):
        with pytest.raises(ArgumentError, match=f"lacks {name}"):
            program(changed(saved, tmp_path / "lacking.pt2", lambda m, name=name: m.__delitem__(name)))
    with pytest.raises(ArgumentError, match="damaged"):
        program(changed(saved, tmp_path / "damaged.pt2", lambda m: m.update({MODEL: m[MODEL][:-9]})))


def test_a_name_that_stands_twice_is_refused(saved: Path, tmp_path: Path):
    target = changed(saved, tmp_path / "twice.pt2", lambda _: None)
    with zipfile.ZipFile(target, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"x/{MODEL}", b"{}")
    with pytest.raises(ArgumentError, match="a name twice"):
        program(target)


def test_symbolic_shapes_are_refused(tmp_path: Path):
    dynamic = {"input": {0: torch.export.Dim("batch", min=2, max=8)}}
    torch.export.save(torch.export.export(linear(0), (torch.ones(3, 3),), dynamic_shapes=dynamic), tmp_path / "d.pt2")
    with pytest.raises(ArgumentError, match="symbolic shapes"):
        program(tmp_path / "d.pt2")
