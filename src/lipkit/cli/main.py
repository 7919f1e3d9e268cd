"""The command `lipkit`: bounds of models in files, and certificates on disk."""

import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lipkit.cli.bound import Request, Task, check, run
from lipkit.cli.names import DEFAULT
from lipkit.errors import ArgumentError, CaptureError, LipkitError, NeedsRegion

if TYPE_CHECKING:
    import typer

_MODEL = (
    "path/to/file.py:make_model (the file is EXECUTED; make_model is a model, a class or a function without arguments) "
    "or path/to/program.pt2 (nothing is executed)"
)


class Code(IntEnum):
    """How the command ends."""

    OK = 0
    OTHER = 1
    USAGE = 2
    UNSUPPORTED = 3
    NEEDS_REGION = 4


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


def app() -> "typer.Typer":
    """The commands, as typer wants them."""
    import typer

    made = typer.Typer(
        help="Lipschitz constants of neural networks: every number says what it proves.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @made.command()
    def bound(
        model: Annotated[str, typer.Argument(help=_MODEL, metavar="MODEL")],
        shape: Annotated[
            list[str] | None,
            typer.Option(help="One input without batch axis, 3,32,32 or 16:int64; one for each input."),
        ] = None,
        weights: Annotated[
            Path | None, typer.Option(help="A state dictionary, .safetensors or .pt; never executed.")
        ] = None,
        method: Annotated[
            str, typer.Option(help="Name of a method, or several with commas: the best counts.")
        ] = DEFAULT,
        norm: Annotated[str, typer.Option(help="2, 1 or inf; two with a comma for input and output.")] = "2",
        ball: Annotated[
            float | None, typer.Option(help="Radius of a ball, in the norm of the input, around --at.")
        ] = None,
        at: Annotated[Path | None, typer.Option(help="Center of the ball, a .npy file.")] = None,
        box: Annotated[str | None, typer.Option(help="low,high of every coordinate.")] = None,
        budget: Annotated[float | None, typer.Option(help="Seconds to spend, for methods that have a budget.")] = None,
        lower: Annotated[
            str, typer.Option(help="How to search a lower bound: sampling, gradientascent, none.")
        ] = "sampling",
        wrt: Annotated[
            list[str] | None, typer.Option(help="An input, or the module whose output is one; may be repeated.")
        ] = None,
        output: Annotated[str | None, typer.Option(help="Which result, by name or position.")] = None,
        seed: Annotated[int, typer.Option(help="Draws weights and examples where there are none.")] = 0,
        json: Annotated[Path | None, typer.Option(help="File for the certificate.")] = None,
    ) -> None:
        """Bound the Lipschitz constant of a model, and certify it.

        Ends with 0 if all went well, 2 for a wrong command line, 3 for a model that cannot be captured, 4 if the
        model has a constant on bounded regions only, and 1 otherwise.
        """

        shapes, inputs = tuple(shape or ()), tuple(wrt or ())
        asked = (model, shapes, weights, method, norm, ball, at, box, budget, lower, inputs, output, seed, json)
        raise typer.Exit(_ended(lambda: run(Task.of(Request(*asked)))))

    @made.command()
    def verify(
        certificate: Annotated[Path, typer.Argument(help="What `lipkit bound --json` wrote.")],
        model: Annotated[str, typer.Argument(help=_MODEL, metavar="MODEL")],
        weights: Annotated[
            Path | None, typer.Option(help="A state dictionary, .safetensors or .pt; never executed.")
        ] = None,
        seed: Annotated[int, typer.Option(help="Draws weights where there are none.")] = 0,
    ) -> None:
        """Check a certificate against a model: the same structure and weights, and the bound computed anew."""
        raise typer.Exit(_ended(lambda: check(certificate, model, weights, seed)))

    return made


def _ended(act: Callable[[], None]) -> Code:
    """How an action ends; its errors are printed, with the code that belongs to them."""
    try:
        act()
    except ArgumentError as error:
        return _said(error, Code.USAGE)
    except CaptureError as error:
        return _said(error, Code.UNSUPPORTED)
    except NeedsRegion as error:
        return _said(error, Code.NEEDS_REGION)
    except LipkitError as error:
        return _said(error, Code.OTHER)
    return Code.OK


def _said(error: Exception, code: Code) -> Code:
    print(error, file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
