"""The command `lipkit`: train, certify, attack and bound models, and the reports of all that."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lipkit._version import __version__
from lipkit.cli.commands.anomaly import detect_anomalies
from lipkit.cli.commands.audit import AuditRequest, audit_run
from lipkit.cli.commands.bound import BoundRequest, VerifyRequest, bound_model, verify_certificate
from lipkit.cli.commands.evaluate import evaluate_model
from lipkit.cli.commands.privacy import PrivacyRequest, state_privacy
from lipkit.cli.commands.report import ReportRequest, redraw_report
from lipkit.cli.commands.run_commands import add_run_commands
from lipkit.cli.commands.smooth_model import RecertifyRequest, recertify_run, smooth_model
from lipkit.cli.commands.spectral import SpectralRequest, play_spectral_game
from lipkit.cli.commands.surface import learn_surface
from lipkit.cli.commands.train import train_recipe
from lipkit.cli.demo.demo import DemoRequest, show_demo
from lipkit.cli.exit_codes import Code
from lipkit.cli.options import add_command, make_app

if TYPE_CHECKING:
    from lipkit.cli.options import Typer


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; 0 if all went well, else a code with a message on standard error."""
    try:
        made = app()
    except ModuleNotFoundError as missing:
        print(f"The command needs {missing.name}; pip install 'lipkit[cli]' brings it.", file=sys.stderr)
        return Code.USAGE
    try:
        made(list(sys.argv[1:] if arguments is None else arguments), prog_name="lipkit")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Code.OTHER
    return Code.OK


def app() -> "Typer":
    """The commands. Each has a request, whose fields are its options, and a function that does what is asked for."""
    made = make_app(
        "Lipschitz constants of neural networks: every number says what it proves.", f"lipkit {__version__}"
    )
    add_command(made, "bound", BoundRequest, bound_model)
    add_command(made, "verify", VerifyRequest, verify_certificate)
    add_run_commands(made, train_recipe, evaluate_model, smooth_model, detect_anomalies, learn_surface)
    add_command(made, "recertify", RecertifyRequest, recertify_run)
    add_command(made, "spectral", SpectralRequest, play_spectral_game)
    add_command(made, "privacy", PrivacyRequest, state_privacy)
    add_command(made, "audit", AuditRequest, audit_run)
    add_command(made, "report", ReportRequest, redraw_report)
    add_command(made, "demo", DemoRequest, show_demo)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
