"""The command `lipkit`: train, certify, attack and bound models, and the reports of all that."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from lipkit._version import __version__
from lipkit.cli.commands.bound import Request, Task, check, run
from lipkit.cli.commands.evaluate import evaluate
from lipkit.cli.commands.exit_codes import Code, ended
from lipkit.cli.commands.request import Wanted
from lipkit.cli.commands.train import Asked, redraw
from lipkit.cli.commands.train import train as act_train
from lipkit.cli.inputs.option_words import DEFAULT

if TYPE_CHECKING:
    import typer

_PYTHON = (
    "path/to/file.py:make_model (the file is EXECUTED; make_model is a model, a class or a function without arguments)"
)
_MODEL = f"{_PYTHON} or path/to/program.pt2 (nothing is executed)"
_WEIGHTS = "A state dictionary, .safetensors or .pt; never executed."


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
        pretty_exceptions_enable=False,
    )

    def show_version(wanted: bool) -> bool:
        if wanted:
            print(f"lipkit {__version__}")
            raise typer.Exit
        return wanted

    @made.callback()
    def common(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Options before any command. The callback handles --version, so nothing is left to do."""

    class Given:
        """What both commands are given."""

        Model: TypeAlias = Annotated[str, typer.Argument(help=_MODEL, metavar="MODEL")]
        Weights: TypeAlias = Annotated[Path | None, typer.Option(help=_WEIGHTS)]

    @made.command()
    def bound(
        model: Given.Model,
        shape: Annotated[
            list[str] | None,
            typer.Option(help="One input without batch axis, 3,32,32 or 16:int64; one for each input."),
        ] = None,
        weights: Given.Weights = None,
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
        device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    ) -> None:
        """Bound the Lipschitz constant of a model, and certify it.

        Ends with 0 if all went well, 2 for a wrong command line, 3 for a model that cannot be captured, 4 if the
        model has a constant on bounded regions only, and 1 otherwise.
        """

        shapes, inputs = tuple(shape or ()), tuple(wrt or ())
        asked = (model, shapes, weights, method, norm, ball, at, box, budget, lower, inputs, output, seed, json, device)
        raise typer.Exit(ended(lambda: run(Task.of(Request(*asked)))))

    @made.command()
    def verify(
        certificate: Annotated[Path, typer.Argument(help="What `lipkit bound --json` wrote.")],
        model: Given.Model,
        weights: Given.Weights = None,
        seed: Annotated[int, typer.Option(help="Draws weights where there are none.")] = 0,
        json: Annotated[Path | None, typer.Option(help="File for what was found.")] = None,
    ) -> None:
        """Check a certificate against a model: the same structure and weights, and the bound computed anew."""
        raise typer.Exit(ended(lambda: check(certificate, model, weights, seed, json)))

    _runs(made)
    _evaluations(made)
    return made


def _runs(made: "typer.Typer") -> None:
    """Commands that train, and that show what came of it."""
    import typer

    # Unknown options are settings of the recipe, which knows its fields.
    @made.command(context_settings={"ignore_unknown_options": True})
    def train(
        recipe: Annotated[Path, typer.Argument(help="A recipe's Python file (it is EXECUTED).", metavar="RECIPE")],
        out: Annotated[Path, typer.Option(help="Folder of the run; the same one again continues it.")],
        settings: Annotated[
            list[str] | None, typer.Argument(help="Fields of the recipe.", metavar="[--KEY=VALUE]...")
        ] = None,
        data: Annotated[Path | None, typer.Option(help="Folder with the files of the data set.")] = None,
        seed: Annotated[int | None, typer.Option(help="Draws weights, batches and attacks.")] = None,
        device: Annotated[str, typer.Option(help="cpu or cuda; under torchrun each process takes its own.")] = "cpu",
        quick: Annotated[bool, typer.Option("--quick", help="A tiny version, to see that all is in place.")] = False,
        json: Annotated[Path | None, typer.Option(help="File for the figures.")] = None,
        tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log for TensorBoard too.")] = False,
    ) -> None:
        """Train by a recipe, certify and attack the result, and write the report.

        Every field of the recipe can be set as --key=value. Ctrl-C leaves a checkpoint; the same command continues.
        """
        asked = Asked(recipe, out, data, seed, device, quick, json, tuple(settings or ()), tensorboard)
        raise typer.Exit(ended(lambda: act_train(asked)))

    @made.command()
    def report(
        run: Annotated[
            Path, typer.Argument(help="The --out of train, certify or attack; or a report.json.", metavar="RUN")
        ],
        out: Annotated[Path | None, typer.Option(help="Folder for report.html; by default that of the run.")] = None,
        json: Annotated[Path | None, typer.Option(help="File for the shares.")] = None,
    ) -> None:
        """Draw the report of a run again from its report.json."""
        raise typer.Exit(ended(lambda: redraw(run, out, json)))

    @made.command()
    def demo(
        out: Annotated[Path, typer.Option(help="Folder for the report and the figures, made if missing.")],
        seed: Annotated[int, typer.Option(help="Draws all weights.")] = 0,
        json: Annotated[Path | None, typer.Option(help="File for all numbers that are printed.")] = None,
    ) -> None:
        """Norms of layers, bounds of a network, and a certified classifier with its report, on embedded data."""
        from lipkit.cli.demo.demo import show

        raise typer.Exit(ended(lambda: show(out, seed, json)))


def _evaluations(made: "typer.Typer") -> None:
    """Commands that hold a model against data."""
    import typer

    class Given:
        """What both commands are given; an attack takes some more."""

        Model: TypeAlias = Annotated[str, typer.Argument(help=_PYTHON, metavar="MODEL")]
        Data: TypeAlias = Annotated[
            str,
            typer.Option(
                help="digits, mnist:FOLDER, fashion-mnist:FOLDER, cifar10:FOLDER, or a .npz file with x and y."
            ),
        ]
        Eps: TypeAlias = Annotated[str, typer.Option(help="Radii in increasing order, such as 36/255,72/255.")]
        Weights: TypeAlias = Annotated[Path | None, typer.Option(help=_WEIGHTS)]
        Method: TypeAlias = Annotated[str, typer.Option(help="Method for everything before the last layer.")]
        Norm: TypeAlias = Annotated[str, typer.Option(help="Norm of the radii: 2, 1 or inf.")]
        Samples: TypeAlias = Annotated[int | None, typer.Option(help="Only the first so many.", min=1)]
        Out: TypeAlias = Annotated[
            Path | None,
            typer.Option(help="Folder for results as they come, and the report; the same continues."),
        ]
        Device: TypeAlias = Annotated[str, typer.Option(help="cpu or cuda.")]
        Seed: TypeAlias = Annotated[int, typer.Option(help="Draws weights where there are none, and attacks.")]
        Json: TypeAlias = Annotated[Path | None, typer.Option(help="File for the shares.")]

    @made.command()
    def certify(
        model: Given.Model,
        data: Given.Data,
        eps: Given.Eps,
        weights: Given.Weights = None,
        method: Given.Method = DEFAULT,
        norm: Given.Norm = "2",
        samples: Given.Samples = None,
        out: Given.Out = None,
        device: Given.Device = "cpu",
        seed: Given.Seed = 0,
        json: Given.Json = None,
    ) -> None:
        """The share of test samples whose class is proven within each radius; with --out, a report."""
        wanted = Wanted(model, data, eps, weights, method, norm, samples, out=out, device=device, seed=seed, json=json)
        raise typer.Exit(ended(lambda: evaluate(wanted)))

    @made.command()
    def attack(
        model: Given.Model,
        data: Given.Data,
        eps: Given.Eps,
        weights: Given.Weights = None,
        method: Given.Method = DEFAULT,
        norm: Given.Norm = "2",
        samples: Given.Samples = None,
        steps: Annotated[int, typer.Option(help="Steps of projected gradient descent.", min=1)] = 40,
        restarts: Annotated[int, typer.Option(help="Random starts.", min=1)] = 1,
        every_class: Annotated[bool, typer.Option(help="Aim at each wrong class in turn.")] = False,
        box: Annotated[str | None, typer.Option(help="low,high of every coordinate, such as 0,1.")] = None,
        out: Given.Out = None,
        device: Given.Device = "cpu",
        seed: Given.Seed = 0,
        json: Given.Json = None,
    ) -> None:
        """The same, and the share that survives an attack; ends with 5 if one breaks a certificate.

        With --out, the report shows both.
        """
        wanted = Wanted(
            model, data, eps, weights, method, norm, samples, steps, restarts, every_class, box, out, device, seed, json
        )
        raise typer.Exit(ended(lambda: evaluate(wanted)))


if __name__ == "__main__":
    raise SystemExit(main())
