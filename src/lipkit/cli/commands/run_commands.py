"""The commands that leave a folder behind, declared once: to run them, and to read the command of a folder again."""

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.commands.evaluation_request import ATTACK_OPTIONS, ATTACK_STEPS, EvaluationRequest
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.options import add_command, make_app
from lipkit.cli.runs.run import Order
from lipkit.errors import RecordError

if TYPE_CHECKING:
    from lipkit.cli.options import Typer

RunRequest = Order | EvaluationRequest | SmoothRequest | AnomalyRequest | SurfaceRequest

_ATTACK = """The same, and the share that survives an attack; ends with 5 if one breaks a certificate.

With --out, the report shows both.
"""


def add_run_commands(
    app: "Typer",
    train: Callable[[Order], None],
    evaluate: Callable[[EvaluationRequest], None],
    smooth: Callable[[SmoothRequest], None],
    detect: Callable[[AnomalyRequest], None],
    learn: Callable[[SurfaceRequest], None],
) -> None:
    """Add `train`, `certify`, `attack`, `smooth`, `anomaly` and `surface` to `app`; each passes its request on."""
    # Unknown options are settings of the recipe, which knows its fields.
    add_command(app, "train", Order, train, unknown=True)
    add_command(app, "certify", EvaluationRequest, evaluate, leave_out=ATTACK_OPTIONS)
    add_command(app, "attack", EvaluationRequest, evaluate, text=_ATTACK, defaults={"steps": ATTACK_STEPS})
    add_command(app, "smooth", SmoothRequest, smooth)
    add_command(app, "anomaly", AnomalyRequest, detect)
    add_command(app, "surface", SurfaceRequest, learn)


def read_command(text: str) -> RunRequest:
    """The request of a command such as `lipkit train ...`, which is not run; a `RecordError` if it is none."""
    found: list[RunRequest] = []
    app = make_app("", "")
    add_run_commands(app, *[found.append] * 5)
    try:
        app(shlex.split(text)[1:], standalone_mode=False)
    # typer has a parser of its own, whose errors are no public names.
    except (Exception, SystemExit) as error:
        raise RecordError(f"{text!r} is no command that makes a run ({error}).") from error
    if not found:
        raise RecordError(f"{text!r} is no command that makes a run.")
    return found[0]
