"""Every operation that torch can write in simpler ones gets a network or a refusal: no crash, no other error."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._ops import OpOverload

import lipkit
from lipkit.errors import CaptureError
from lipkit.trace.capture import capture
from support.networks.short_models import agrees, linear, model, vector
from support.programs.run import PROGRAMS, environment

# The operations are asked for in so many pairs of processes, so that two workers can share them: each process takes
# seconds to begin.
PARTS = 2
# Operations of which arguments are found: 543 of 656 in torch 2.13; the others want sizes or values that fit.
EXERCISED = 0.7


def operations() -> list[str]:
    """The operations of torch's table that have a result of their own and a tensor to be a function of.

    Those in place or into a given tensor are made functional by the export, and are then in this list.
    """
    table = torch.export.default_decompositions()
    ops = [op for op in table if isinstance(op, OpOverload) and op.namespace == "aten"]
    return [op.name() for op in ops if not op._schema.is_mutable and _takes_tensor(op)]


def _takes_tensor(op: OpOverload) -> bool:
    return any(str(argument.type) in ("Tensor", "List[Tensor]") for argument in op._schema.arguments)


def answers(lines: list[str], *command: str) -> dict[str, str]:
    """What a program says of each line, by the first word of it.

    A line that ends the process gets the exit status as its answer, and another process continues behind it.
    """
    found: dict[str, str] = {}
    while len(found) < len(lines):
        run = subprocess.run(
            [sys.executable, *command],
            input="\n".join(lines[len(found) :]),
            capture_output=True,
            text=True,
            env=environment(),
            check=False,
        )
        name = ""
        for line in run.stdout.splitlines():
            if line.startswith("begin "):
                name = line.removeprefix("begin ")
            else:
                found[name] = line
        if run.returncode:
            assert name, run.stderr
            # Also if it had answered: memory that is damaged may show later.
            found[name] = f"ended the process with {run.returncode}"
    return found


@pytest.mark.process
@pytest.mark.parametrize("part", range(PARTS))
def test_every_operation_gives_a_network_or_a_refusal(part: int):
    names = operations()[part::PARTS]
    program = str(PROGRAMS / "operation_program.py")
    numbers = answers(names, program, "sample")
    assert list(numbers) == names
    # A process that dies here dies of torch, which was given arguments that it does not take.
    taken = [f"{name} {number}" for name, number in numbers.items() if number.isdigit()]
    assert len(taken) >= EXERCISED * len(names), [name for name, number in numbers.items() if not number.isdigit()]
    found = answers(taken, program, "ask")
    assert len(found) == len(taken)
    assert {name: said for name, said in found.items() if said not in ("network", "refused")} == {}


@pytest.mark.process
def test_a_process_that_dies_is_named_and_another_one_continues(tmp_path: Path):
    program = tmp_path / "dies.py"
    _ = program.write_text(
        "import os, sys\n"
        "for name in map(str.strip, sys.stdin):\n"
        "    print('begin', name, flush=True)\n"
        "    if name == 'b': os._exit(7)\n"
        "    print('network', flush=True)\n"
    )
    expected = {"a": "network", "b": "ended the process with 7", "c": "network"}
    assert answers(list(expected), str(program)) == expected


# What this found, and what needs arguments that cannot be drawn.


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_are_written_out(cell: type[nn.Module]):
    module, x = cell(6, 5).double(), vector()
    network = capture(module, x, output=0)
    returned = module(x)
    expected = returned[0] if isinstance(returned, tuple) else returned
    assert torch.allclose(network(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "like", [Tensor.type_as, Tensor.to, lambda mask, x: mask.expand_as(x), lambda mask, x: mask.reshape_as(x)]
)
def test_a_constant_in_the_type_or_shape_of_the_input_is_a_constant(like: Callable[[Tensor, Tensor], Tensor]):
    module = model(lambda self, x: self.a(x) * (like(torch.arange(6.0)[None], x) * 2), a=linear())
    agrees(capture(module, vector()), module, vector(batch=1))


def test_parts_without_entries_are_joined():
    # Differences in the middle of two entries: there are none, and those at the ends are joined with them.
    module = model(lambda _self, x: torch.gradient(x[:, :2], dim=1)[0])
    agrees(capture(module, vector()), module, vector(batch=1))


def test_numbers_are_samples_too():
    module = model(lambda _self, x: 3 * x.tanh())
    network = capture(module, torch.rand(4, dtype=torch.float64))
    assert network.source == (1,)
    assert float(lipkit.lipschitz(module, torch.rand(4).double()).value) == pytest.approx(3, rel=1e-6)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (lambda _self, x: torch.ops.aten.nonzero_numpy(x)[0] * x.sum(), "depends on values"),
        (lambda _self, x: x.to_sparse_csr(), "gives a sparse tensor that depends on the input"),
        (lambda _self, x: torch.select_scatter(torch.zeros(1, 6).double(), x[0, :1], 0, 0), "torch does not run it"),
    ],
)
def test_what_torch_itself_cannot_run_is_refused_in_one_sentence(run: Callable[..., Tensor], reason: str):
    with pytest.raises(CaptureError, match=reason):
        _ = capture(model(run), vector())
