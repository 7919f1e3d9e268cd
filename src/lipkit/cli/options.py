"""Options of a command, declared once: as the fields of its request, from which typer's command line is made."""

import inspect
import shlex
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from lipkit.cli.exit_codes import exit_code_of

if TYPE_CHECKING:
    from typer import Typer as Typer

PYTHON_MODEL = (
    "path/to/file.py:make_model (the file is EXECUTED; make_model is a model, a class or a function without arguments)"
)
ANY_MODEL = f"{PYTHON_MODEL} or path/to/program.pt2 (nothing is executed)"
WEIGHTS = "A state dictionary, .safetensors or .pt; never executed."

R = TypeVar("R")
_WORDS = tuple[str, ...]


def option(text: str, default: Any = MISSING, flag: str | None = None, least: int | None = None) -> Any:
    """A field that the command line sets by `--name VALUE`.

    Args:
        text: What the help of the command says of it.
        default: Without one the option is required.
        flag: Another spelling than `--name`; for a yes or no, one without `--no-name` beside it.
        least: The smallest whole number that is taken.
    """
    settings = {"min": least} if least is not None else {}
    return field(default=default, metadata={"flags": () if flag is None else (flag,), "help": text, **settings})


def argument(text: str, metavar: str, default: Any = MISSING) -> Any:
    """A field that the command line sets by its place; `metavar` is what the help calls it."""
    return field(default=default, metadata={"argument": True, "help": text, "metavar": metavar})


def make_app(text: str, version: str) -> "Typer":
    """A command line without commands, whose help says `text` and which prints `version` when asked to."""
    import typer

    app = typer.Typer(help=text, no_args_is_help=True, pretty_exceptions_enable=False)

    def show_version(wanted: bool) -> bool:
        if wanted:
            print(version)
            raise typer.Exit
        return wanted

    @app.callback()
    def common(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Options before any command. The callback handles --version, so nothing is left to do."""

    return app


def add_command(
    app: "Typer", name: str, request: type[R], act: Callable[[R], None], *, text: str | None = None,
    defaults: Mapping[str, object] | None = None, leave_out: Collection[str] = (), unknown: bool = False,
) -> None:  # fmt: skip
    """Give `app` a command that makes a request from its options and passes it to `act`.

    Args:
        app: The command line.
        name: The word of the command.
        request: A dataclass whose fields are made by `option` and `argument`; its docstring is the help.
        act: Does what is asked for; its errors become exit codes.
        text: Another help than the docstring.
        defaults: Other defaults than those of the fields.
        leave_out: Fields that this command does not offer.
        unknown: Whether unknown options become words of the last argument.
    """
    import typer

    hints = typing.get_type_hints(request)
    offered = [one for one in fields(request) if one.name not in leave_out]  # pyright: ignore[reportArgumentType]

    def command(**values: Any) -> None:
        # typer knows lists alone.
        given = {name: tuple(value or ()) if hints[name] == _WORDS else value for name, value in values.items()}
        raise typer.Exit(exit_code_of(lambda: act(request(**given))))

    made = [_parameter(one, hints[one.name], (defaults or {}).get(one.name, one.default)) for one in offered]
    vars(command)["__signature__"] = inspect.Signature(made)
    command.__annotations__ = {one.name: one.annotation for one in made}
    app.command(name, help=text or request.__doc__, context_settings={"ignore_unknown_options": unknown})(command)


def spell_command(name: str, request: Any, explicit: Collection[str]) -> str:
    """The command that makes a request again: its arguments by their places, and its options apart from --json.

    Options with their defaults are left out, unless they are `explicit`: a command says what it is about.
    """
    placed = [one.name for one in fields(request) if "argument" in one.metadata]
    words = ["lipkit", name, *(str(getattr(request, one)) for one in placed)]
    for one in fields(request):
        value = getattr(request, one.name)
        if one.name in (*placed, "json") or (one.name not in explicit and value == one.default):
            continue
        words.append(f"--{'no-' if value is False else ''}{one.name.replace('_', '-')}")
        words += [] if isinstance(value, bool) else [str(value)]
    return shlex.join(words)


def _parameter(one: Field[Any], hint: Any, default: object) -> inspect.Parameter:
    """A field as a parameter of the function that typer reads."""
    import typer

    settings = dict(one.metadata)
    kind = typer.Argument if settings.pop("argument", False) else typer.Option
    if hint == _WORDS:
        hint, default = list[str] | None, None
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[hint, kind(*settings.pop("flags", ()), **settings)],
    )
