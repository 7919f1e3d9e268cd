"""`lipkit bound` from the command line to the certificate, and every way it may end."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from lipkit.bound import Kind
from lipkit.bounds import Auto, Best, LipLT, Product
from lipkit.bounds.certificates.certificate import Certificate
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.cli.commands.bound import BoundRequest, print_layers
from lipkit.cli.exit_codes import exit_code_of
from lipkit.cli.main import Code, app, main
from lipkit.errors import ArgumentError

pytest.importorskip("typer")

MODELS = '''
"""Models for tests."""
import torch
from torch import nn
from beside import WIDTH


def make_model():
    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))


ready = make_model()
number = 3


def make_number():
    return 3


def make_wide(width, *, depth=1, bias):
    return nn.Linear(width, 2, bias)


def make_exit():
    raise SystemExit(7)


def make_trouble():
    raise KeyError("weights")


class Divided(nn.Module):
    def __init__(self, by=0):
        super().__init__()
        self.by = by

    def forward(self, x):
        return x / self.by


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Squares(nn.Module):
    def forward(self, x):
        return x * x


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.embed(ids)).sum(1)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    (made / "models.py").write_text(MODELS)
    (made / "beside.py").write_text("WIDTH = 6\n")
    (made / "wrong.py").write_text("x = 1 / 0\n")
    (made / "syntax.py").write_text("def f(:\n")
    np.save(made / "x.npy", np.full((1, 4), 0.5))
    return made


class Run(NamedTuple):
    """The output and the exit code of one run."""

    code: int
    out: str
    err: str


Command = Callable[..., Run]


@pytest.fixture
def lipkit(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(folder)

    def call(*arguments: str) -> Run:
        code = main(arguments)
        caught = capsys.readouterr()
        return Run(code, caught.out, caught.err)

    return call


def lines(text: str) -> dict[str, str]:
    """The lines `name  value` of the summary."""
    pairs = [line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip()]
    return {pair[0]: pair[1].strip() for pair in pairs}


def test_a_bound_and_its_certificate(lipkit: Command, folder: Path):
    run = lipkit(
        "bound", "models.py:make_model", "--shape", "4", "--method", "product,liplt", "--seed", "3", "--json", "c.json"
    )
    assert run.code == Code.OK, run.err
    assert "Linear 4->6" in run.out
    assert "certificate in c.json" in run.out
    torch.manual_seed(3)
    norms = [torch.linalg.matrix_norm(layer.weight.detach(), 2).item() for layer in (nn.Linear(4, 6), nn.Linear(6, 3))]
    paper = Certificate.load(folder / "c.json")
    # LipLT is never above the product, and on two random layers below it.
    assert 0 < paper.value < norms[0] * norms[1]
    said = lines(run.out)
    assert said["method"] == "LipLT"
    assert said["region"] == "everywhere"
    assert said["failure"] == "none: deterministic"
    assert said["bound"].endswith("(upper bound, l2->l2)")
    # Printed bounds are rounded up, in the sixth digit.
    printed = float(said["bound"].split()[0])
    assert paper.value <= printed <= paper.value * (1 + 1e-5)
    # The largest slope at points that were drawn is never above the bound.
    least = float(said["lower bound"].split()[0])
    assert paper.log_lower is not None
    assert 0 < least <= math.exp(paper.log_lower) <= paper.value
    assert float(said["ratio"]) == pytest.approx(paper.value / math.exp(paper.log_lower), rel=1e-3)
    assert isinstance(paper.asked, Best)
    assert paper.asked.methods == (Product(), LipLT())


def test_within_a_budget_the_winner_is_recorded(lipkit: Command, folder: Path):
    run = lipkit("bound", "models.py:ready", "--shape", "4", "--budget", "20", "--json", "a.json")
    assert run.code == 0, run.err
    paper = Certificate.load(folder / "a.json")
    assert paper.asked == Auto(budget=20.0)
    # The repeated run must not depend on the time of day.
    assert not isinstance(paper.method, Auto)
    assert lines(run.out)["method"] == str(paper.method)


def test_verify_accepts_the_model_and_refuses_another(lipkit: Command):
    assert lipkit("bound", "models.py:make_model", "--shape", "4", "--method", "dag", "--json", "v.json").code == 0
    held = lipkit("verify", "v.json", "models.py:make_model", "--json", "held.json")
    assert held.code == Code.OK, held.err
    assert "The certificate holds" in held.out
    said = json.loads(Path("held.json").read_text())
    assert said["holds"] is True
    assert said["reproduced"] == "bit for bit"
    assert said["confirmed"] == said["recorded"] == Certificate.load("v.json").value
    anew = said["anew"]
    assert (anew["kind"], anew["norms"]) == ("upper bound", "l2->l2")
    assert f"Computed anew: {anew['bound']}" in held.out
    other = lipkit("verify", "v.json", "models.py:make_model", "--seed", "9")
    assert other.code == Code.OTHER
    assert "differs from the certified one" in other.err
    assert lipkit("verify", "beside.py", "models.py:make_model").code == Code.OTHER


def test_verify_says_what_is_reproduced_and_not_proven(lipkit: Command, folder: Path):
    assert lipkit("bound", "models.py:make_model", "--shape", "4", "--method", "dag", "--json", "n.json").code == 0
    paper = Certificate.load(folder / "n.json")
    # From another processor, and a rounding below what this one computes.
    log_value = paper.log_value - 1e-10
    there = replace(paper.software, processor="another")
    replace(paper, log_value=log_value, value=math.exp(log_value), software=there).save(folder / "n.json")
    run = lipkit("verify", "n.json", "models.py:make_model", "--json", "open.json")
    assert run.code == Code.NOT_PROVEN
    assert "reproduced, and its value is not proven" in run.out
    assert "use the larger value" in run.err
    said = json.loads((folder / "open.json").read_text())
    assert said["holds"] is False
    assert said["confirmed"] == paper.value > said["recorded"]


def test_a_program_is_bounded_without_shapes(lipkit: Command, folder: Path):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    torch.export.save(torch.export.export(model, (torch.ones(1, 4),)), folder / "m.pt2")
    torch.save(model.state_dict(), folder / "w.pt")
    run = lipkit("bound", "m.pt2", "--method", "dag", "--json", "m.json")
    assert run.code == 0, run.err
    assert lipkit("verify", "m.json", "m.pt2").code == 0
    # The same weights in the model they came from give the same number.
    same = lipkit("bound", "models.py:make_model", "--weights", "w.pt", "--shape", "4", "--method", "dag")
    assert lines(same.out)["bound"] == lines(run.out)["bound"]
    assert lipkit("bound", "m.pt2", "--weights", "w.pt", "--method", "dag").code == Code.USAGE


def test_a_ball_around_a_point(lipkit: Command, folder: Path):
    run = lipkit(
        *("bound", "models.py:ready", "--shape", "4", "--method", "dag"),
        *("--ball", "0.1", "--at", "x.npy", "--norm", "inf", "--json", "b.json"),
    )
    assert run.code == 0, run.err
    assert "linf ball of radius 0.1" in run.out
    assert Certificate.load(folder / "b.json").metric == (float("inf"), float("inf"))


def test_a_model_that_is_lipschitz_on_regions_only(lipkit: Command):
    needs = lipkit("bound", "models.py:Squares", "--shape", "4", "--method", "dag")
    assert needs.code == Code.NEEDS_REGION
    assert "Give a region: --ball R --at x.npy, or --box low,high." in needs.err
    assert "region=Ball" not in needs.err
    assert "region" in needs.err
    run = lipkit("bound", "models.py:Squares", "--shape", "4", "--method", "dag", "--box", "-1,2")
    assert run.code == 0, run.err
    # |2 x| is at most 4 on [-1, 2]; six digits are printed, rounded up.
    assert float(lines(run.out)["bound"].split()[0]) == pytest.approx(4, rel=1e-5)


def test_a_model_that_divides_by_nothing(lipkit: Command):
    run = lipkit("bound", "models.py:Divided", "--shape", "4")
    assert run.code == Code.UNSUPPORTED
    assert "refused: divides by 0" in run.err
    assert "use a divisor whose reciprocal is finite" in run.err


def test_verify_refuses_a_seed_first(lipkit: Command):
    run = lipkit("verify", "absent.json", "models.py:ready", "--seed", "-1")
    assert (run.code, run.err) == (Code.USAGE, "--seed must lie in [0, 2^63), got -1.\n")


def test_control_c_ends_in_one_sentence(capsys: pytest.CaptureFixture[str]):
    def stopped() -> None:
        raise KeyboardInterrupt

    assert exit_code_of(stopped) == Code.INTERRUPTED
    assert capsys.readouterr().err.startswith("Interrupted; ")


def test_a_model_that_cannot_be_captured(lipkit: Command):
    run = lipkit("bound", "models.py:Branching", "--shape", "4", "--method", "dag")
    assert run.code == Code.UNSUPPORTED
    assert "cannot" in run.err
    # Messages of torch are not for the user.
    assert len(run.err.strip().splitlines()) == 1


def test_a_device_that_is_not_there_is_refused(lipkit: Command):
    assert lipkit("bound", "models.py:ready", "--shape", "4", "--method", "dag", "--device", "cpu").code == Code.OK
    run = lipkit("bound", "models.py:ready", "--shape", "4", "--method", "dag", "--device", "mps")
    assert run.code == Code.USAGE
    assert "There is no device mps here" in run.err


def test_a_lower_bound_is_no_certificate(lipkit: Command, folder: Path):
    run = lipkit("bound", "models.py:ready", "--shape", "4", "--method", "sampling", "--json", "l.json")
    assert run.code == Code.OTHER
    assert "lower bound, l2->l2" in run.out
    assert "Only exact and upper bounds can be certified" in run.err
    assert not (folder / "l.json").exists()


def test_token_ids_and_the_module_behind_them(lipkit: Command):
    run = lipkit("bound", "models.py:Words", "--shape", "5:int64", "--wrt", "embed", "--method", "dag")
    assert run.code == 0, run.err
    assert "(5, 4)" in lines(run.out)["model"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("models.py:make_model",), "--shape is missing"),
        (("models.py:make_model", "--shape", "4,x"), "--shape is whole numbers"),
        (("models.py:make_model", "--shape", "0"), "--shape is whole numbers"),
        (("models.py:make_model", "--shape", "4:real"), "names the type 'real'"),
        (("models.py:absent", "--shape", "4"), "has no absent; it has"),
        (("models.py:number", "--shape", "4"), "is a int"),
        (("models.py:make_number", "--shape", "4"), "made a int"),
        (("models.py:make_wide", "--shape", "4"), "wants the arguments width, bias; name a function without"),
        (("models.py:make_trouble", "--shape", "4"), r"stopped with KeyError: 'weights' \(line \d+ of .*models.py\)"),
        (("wrong.py:f", "--shape", "4"), r"wrong.py stopped with ZeroDivisionError: .* \(line 1 of .*wrong.py\)"),
        (("models.py:ready", "--shape", "4", "--seed", "1" + 30 * "0"), "--seed must lie in"),
        (("models.py", "--shape", "4"), "neither path/to/file.py:make_model nor"),
        (("absent.py:f", "--shape", "4"), "There is no file absent.py"),
        (("absent.pt2",), "There is no file absent.pt2"),
        (
            ("models.py:ready", "--shape", "4", "--method", "magic"),
            "no method 'magic'; methods are .*dag.*liplt",
        ),
        (("models.py:ready", "--shape", "4", "--norm", "0.5"), "--norm is 2, 1, inf"),
        (("models.py:ready", "--shape", "4", "--ball", "1"), "--ball and --at go together"),
        (("models.py:ready", "--shape", "4", "--ball", "-1", "--at", "x.npy"), "radius >= 0"),
        (
            ("models.py:ready", "--shape", "4", "--ball", "1", "--method", "dag", "--at", "models.py"),
            "no readable .npy",
        ),
        (("models.py:ready", "--shape", "4", "--ball", "1", "--at", "x.npy", "--box", "0,1"), "two regions"),
        (("models.py:ready", "--shape", "3,4", "--ball", "1", "--method", "dag", "--at", "x.npy"), "--at has shape"),
        (("models.py:ready", "--shape", "4", "--box", "2,1"), "--box is two numbers"),
        (
            ("models.py:ready", "--shape", "4", "--method", "dag", "--budget", "5"),
            "has no budget of time; auto, linearization, liplt, lipmip has",
        ),
        (("models.py:ready", "--shape", "4", "--budget", "-1"), "--budget is a number of seconds > 0"),
        (("models.py:ready", "--shape", "4", "--lower", "magic"), "--lower is one of none, gradientascent, sampling"),
        (("models.py:ready", "--shape", "4", "--seed", "-1"), "--seed must lie in"),
        (("models.py:ready", "--shape", "4", "--json", "no/such/c.json"), "lies in no folder"),
        (("models.py:ready", "--shape", "4", "--json", "."), "--json . is a folder; name a file"),
        (("models.py:ready", "--shape", "4:quint8"), "names the type 'quint8'"),
        (("models.py:ready", "--shape", "4:complex64"), "names the type 'complex64'"),
        (("models.py:ready", "--shape", "99999999999999"), "99999999999999 does not fit into memory"),
        (("models.py:ready", "--shape", "9" * 30), "does not fit into memory"),
        (
            ("syntax.py:f", "--shape", "4"),
            r"syntax.py is no Python: invalid syntax \(line 1 of .*syntax.py\); repair it",
        ),
        (("models.py:make_exit", "--shape", "4"), r"stopped with SystemExit: 7 \(line \d+ of .*models.py\)"),
    ],
)
def test_a_wrong_command_line_ends_in_one_sentence(lipkit: Command, arguments: tuple[str, ...], words: str):
    run = lipkit("bound", *arguments)
    assert run.code == Code.USAGE
    assert run.out == ""
    assert run.err.count("\n") == 1
    with pytest.raises(ArgumentError, match=words):
        raise ArgumentError(run.err)


def test_an_unknown_option_is_a_usage_error(lipkit: Command):
    assert lipkit("bound", "models.py:ready", "--colour").code == Code.USAGE
    assert lipkit("bound").code == Code.USAGE


def test_the_help_says_that_the_file_is_executed(lipkit: Command):
    run = lipkit("bound", "--help")
    assert run.code == 0
    assert "EXECUTED" in run.out


def test_with_the_runner_of_typer(folder: Path, monkeypatch: pytest.MonkeyPatch):
    from typer.testing import CliRunner

    monkeypatch.chdir(folder)
    arguments = ["bound", "models.py:ready", "--shape", "4", "--method", "dag", "--lower", "none"]
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == 0, result.output
    assert lines(result.output)["lower bound"] == "not known"


@pytest.mark.process
def test_as_a_process(folder: Path):
    command = [sys.executable, "-m", "lipkit.cli.main", "bound", "models.py:ready", "--shape", "4", "--method", "dag"]
    env = {**os.environ, "NO_COLOR": "1"}
    run = subprocess.run(
        [*command, "--json", "p.json"], check=False, cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert "\x1b" not in run.stdout
    assert json.loads((folder / "p.json").read_text())["digest"]


ROWS = [LayerRow(1, 0, "features[0]", "Conv 3->64 7x7 /2 on 224x224", 1.5, Kind.UPPER, "m", 1.0, 0.25, 1.75)]


@pytest.mark.parametrize("width", [30, 60, 76, 200])
def test_numbers_survive_in_narrow_windows(width: int):
    from rich.console import Console

    console = Console(width=width, no_color=True)
    with console.capture() as caught:
        print_layers(ROWS, console.print, width)
    text = caught.get()
    for number in ("4.4817", "25.0%", "1.75", "features[0]"):
        assert number in text.replace("\n", "")


@pytest.mark.parametrize("width", [30, 200])
def test_an_exact_norm_of_one_is_one(width: int):
    from rich.console import Console

    console = Console(width=width, no_color=True)
    with console.capture() as caught:
        print_layers([replace(ROWS[0], log_norm=4e-15, kind=Kind.EXACT)], console.print, width)
    assert re.search(r" 1 +\(?exact", " ".join(caught.get().split()))


@pytest.mark.parametrize(("model", "said"), [("models.py:ready", True), ("models.py:Squares", False)])
def test_where_weights_without_a_file_come_from_is_said(lipkit: Command, model: str, said: bool):
    run = lipkit("bound", model, "--shape", "4", "--method", "dag", "--lower", "none", "--box", "0,1")
    assert run.code == Code.OK
    assert run.err == (f"No --weights: the weights are those that {model} makes.\n" if said else "")


def test_a_request_checks_itself():
    with pytest.raises(ArgumentError, match="seed"):
        BoundRequest("m", seed=2**63)


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["bound"]) == Code.USAGE
    assert "needs typer" in capsys.readouterr().err
