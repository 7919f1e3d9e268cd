"""Run in a process of its own, without shape checks: every layer exported, compiled, in mixed precision, distributed.

    PYTHONPATH=tests python tests/support/programs/layer_programs.py {half,other,inductor,distributed,planted}

Prints one line for each failure and exits with their number.
"""

import gc
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from support.layers.examples import LAYERS, SECOND
from support.programs.run import together


def compiled(model: nn.Module, x: Tensor, backend: str = "aot_eager") -> None:
    """A training step without graph breaks gives the gradients of the plain one."""
    with torch.no_grad():
        for parameter in model.parameters():
            # Initial weights have correlations of nothing but rounding, whose signs compiled programs see otherwise.
            parameter.add_(0.1 * torch.randn_like(parameter))
    x.requires_grad_()
    expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    program = torch.compile(model, fullgraph=True, backend=backend)
    with warnings.catch_warnings():
        # Compilers say in a warning that they ignore what is cached: users would read it at every compilation.
        warnings.filterwarnings("error", message="Dynamo detected a call to a `functools.lru_cache`")
        found = torch.autograd.grad(program(x).square().sum(), [x, *model.parameters()])
    # 1e-5 for the weight; its free numbers may be a quarter of it, and then have gradients four times as large.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=4e-5)


def exported(model: nn.Module, x: Tensor) -> None:
    """The exported program computes the same, and follows its parameters."""
    model.eval()
    program = torch.export.export(model, (x,)).module()
    # On a CPU programs multiply in float64 and leave less room for rounding: 2e-6 of a weight.
    torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)


def mixed(model: nn.Module, x: Tensor) -> None:
    """Autocast trains: finite gradients in the type of the parameters, outputs near the plain ones."""
    x.requires_grad_()
    expected = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    gradients = torch.autograd.grad(y.float().square().sum(), [x, *model.parameters()])
    assert all(bool(torch.isfinite(g).all()) for g in gradients)
    # bfloat16 has 8 digits; weights are smaller by 2^-8 on purpose.
    torch.testing.assert_close(y.float(), expected, rtol=0.1, atol=0.1)


def narrow(model: nn.Module, x: Tensor) -> None:
    """A model in bfloat16 or float64 runs forward and backward in its own type."""
    for dtype in (torch.bfloat16, torch.float64):
        model.to(dtype)
        z = x.detach().to(dtype).requires_grad_()
        y = model(z)
        assert y.dtype == dtype
        gradients = torch.autograd.grad(y.square().sum(), [z, *model.parameters()])
        assert all(bool(torch.isfinite(g).all()) for g in gradients)


def refusals() -> int:
    """Arguments of another type get our sentence; under shape checks the checker would speak first."""
    failures = 0
    for wrong in ("bjorck", lnn.Bjorck):
        try:
            lnn.Linear(4, 4, method=cast(Any, wrong))
        except ArgumentError as error:
            failures += "such as Bjorck()" not in str(error)
        else:
            failures += 1
    return failures


def ties() -> int:
    """A compiled sort permutes gradients where values are equal; a maximum would halve them."""
    x, g = torch.ones(2, 4, requires_grad=True), torch.randn(2, 4)
    (found,) = torch.autograd.grad(torch.compile(lnn.MaxMin(), fullgraph=True, backend="aot_eager")(x), x, g)
    return int(not torch.equal(found.sort(1).values, g.sort(1).values))


def each_sample() -> int:
    """Compiled gradients of single samples: compilers have no rule for vmap of functions with their own derivative."""
    failures = 0
    for method in (lnn.AOL(), lnn.Bjorck(2), lnn.Cayley()):
        torch.compiler.reset()
        model, x = lnn.Linear(3, 2, method=method), torch.randn(4, 3)

        def loss(parameters: dict[str, Tensor], x: Tensor, model: nn.Module = model) -> Tensor:
            return torch.func.functional_call(model, parameters, (x,)).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        try:
            found = torch.compile(each, fullgraph=True, backend="eager")(parameters, x)
            # As above: free numbers are a quarter of the weight.
            torch.testing.assert_close(found, each(parameters, x), rtol=1e-4, atol=4e-5)
        except Exception:  # noqa: BLE001 - every failure is reported with its method
            failures += 1
            print(f"{method}: compiled gradients of samples failed\n{traceback.format_exc()}", flush=True)
    return failures


def ungraded(model: nn.Module, x: Tensor) -> None:
    """Compiled under no_grad, and with parameters that need no gradient: functions with their own derivative too."""
    # Layers that keep running means would compare another state with each call.
    model.eval()
    for grad in (True, False) if list(model.parameters()) else (False,):
        torch.compiler.reset()
        model.requires_grad_(not grad)
        with torch.set_grad_enabled(grad):
            found = torch.compile(model, fullgraph=True, backend="eager")(x)
            # On a CPU programs multiply in float64 and leave less room for rounding.
            torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def programs(first: int) -> int:
    """Every second layer, so that two workers can share them."""
    # Compilers allocate so much that a quarter of the time would go into looking again and again at what is loaded.
    gc.freeze()
    failures = refusals() + ties() if first else each_sample()
    checks: tuple[Callable[[nn.Module, Tensor], None], ...] = (compiled, ungraded, exported, mixed, narrow)
    cases = [(name, build, checks) for name, build in LAYERS.items()]
    cases += [(name, build, (compiled,)) for name, build in SECOND.items()]
    for name, build, wanted in cases[first::2]:
        for check in wanted:
            torch.manual_seed(0)
            torch.compiler.reset()
            model, in_shape = build()
            try:
                check(model, torch.randn(3, *in_shape))
            except NotImplementedError as error:
                # Some kernels of torch exist for some types only, such as avg_pool3d in bfloat16.
                print(f"{name}: {check.__name__} left out, {error}")
            except Exception:  # noqa: BLE001 - every failure is reported with its layer
                failures += 1
                print(f"{name}: {check.__name__} failed\n{traceback.format_exc()}", flush=True)
    return failures


def inductor() -> int:
    """Machine code of the two default layers, which needs a C++ compiler and takes longer than everything above."""
    torch.manual_seed(0)
    model = nn.Sequential(lnn.Conv2d(2, 4, 3, padding=1), lnn.MaxMin(), nn.Flatten(), lnn.Linear(36, 3))
    compiled(model, torch.randn(2, 2, 3, 3), "inductor")
    return 0


class Alone(nn.Linear):
    """A planted defect: each process keeps a statistic of its own."""

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        self.seen.add_(input.detach().sum())
        return super().forward(input)


def worker(rank: int, folder: str, planted: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    failed = 0
    try:
        if planted:
            torch.manual_seed(rank)
            _train("planted", Alone(), (3,))
        for name, build in ({} if planted else LAYERS).items():
            torch.manual_seed(rank)
            model, in_shape = build()
            if list(model.parameters()):
                _train(name, model, in_shape)
    except Exception:  # noqa: BLE001 - reported here, because the process does not end by itself
        failed = 1
        traceback.print_exc()
    sys.stderr.flush()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(failed)


def _train(name: str, model: nn.Module, in_shape: Shape) -> None:
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # A statistic that each process keeps for itself differs after the first.
    for _ in range(3):
        parallel(torch.randn(4, *in_shape)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    different: list[str] = []
    for key, value in model.state_dict().items():
        first = value.clone()
        dist.broadcast(first, 0)
        apart = torch.tensor(float(not torch.equal(first, value)))
        # All processes learn of it and stop together: one that leaves alone lets the other wait for it.
        dist.all_reduce(apart)
        different += [key] if apart > 0 else []
    assert not different, f"{name}: {', '.join(different)} differs between processes after three steps"


def distributed(planted: bool = False) -> int:
    with tempfile.TemporaryDirectory() as folder:
        together(worker, (folder, planted), 2)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = {
        "half": partial(programs, 0),
        "other": partial(programs, 1),
        "inductor": inductor,
        "distributed": distributed,
        "planted": partial(distributed, True),
    }
    sys.exit(wanted[sys.argv[1]]())
