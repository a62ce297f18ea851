"""Turns a function that takes dataclasses of options into a command of Typer."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, is_dataclass
from functools import wraps
from textwrap import TextWrapper
from typing import Annotated, Any, cast, get_type_hints

import typer
from continuum_traces.names import harmless
from typer.core import TyperArgument, TyperCommand, TyperGroup

from continuum_bench.completion import completer
from continuum_bench.ctrl_c import INTERRUPTED, forget, raising
from continuum_bench.options.declare import Declared, OptionGroup, declared
from continuum_bench.options.together import check_together

FAULTS_OF_FILES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC)
"""What may be wrong with any file, wherever it is read or written."""
Command = Callable[..., int]


def add_command(app: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
    """Register the decorated function as a command of ``app``. The function returns an exit code.

    Args:
        app: the group of commands.
        name: name of the command; default: the function's name.
        settings: further arguments of ``typer.Typer.command``.
    """

    def register(function: Command) -> Command:
        app.command(name or function.__name__, cls=HelpfulCommand, **settings)(with_flat_signature(function))
        return function

    return register


GONE = {
    "--max-outside": "is gone since 0.4.0: no program waits to be admitted; first turns of new programs run early",
}
"""Options of earlier versions, and what replaces them."""


class HelpfulCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for name in (arg.partition("=")[0] for arg in args):
            if name in GONE:
                typer.echo(f"error: {name} {GONE[name]}", err=True)
                raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_help(self, ctx, formatter.width, {}))


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in ctx.command.params:
            cast(Any, parameter).hidden = False
        typer.echo(ctx.get_help())
        raise typer.Exit


HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options, and exit.")
    ],
)


class HelpfulGroup(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, command.help or "") for name, command in self.commands.items()]
        formatter.write(_help(self, ctx, formatter.width, {"Commands": commands}))


def _help(command: Any, ctx: Any, width: int, more: dict[str, list[tuple[str, str]]]) -> str:
    """Write the text of ``--help``: options by panel, each above its sentence. No name is cut at any screen width."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        panel = "Arguments" if isinstance(parameter, TyperArgument) else parameter.rich_help_panel
        if record := parameter.get_help_record(ctx):
            panels.setdefault(panel or "Options", []).append(record)
    usage = " ".join(["Usage:", ctx.command_path, *command.collect_usage_pieces(ctx)])
    lines = [_wrapped(usage, width, ""), "", _wrapped(command.help, width, "  ")]
    for title, records in {**panels, **more}.items():
        lines += ["", f"{title}:"]
        for name, text in records:
            lines += [f"  {name}", _wrapped(text, width, " " * 6)]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int, space: str) -> str:
    whole = TextWrapper(width, space, space, break_long_words=False, break_on_hyphens=False)
    return whole.fill(" ".join(text.split()))


def with_flat_signature(function: Command) -> Callable[..., None]:
    """Return the command with one parameter for each option of its dataclasses, and with errors shown in one line.

    Parameters that are no dataclasses stay as they are, for Typer.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    usual = {name for group in groups.values() for name in group.usual}
    parameters = {name: _parameters(group, usual) for name, group in groups.items()}

    @wraps(function)
    def command(help_all: bool = False, **given: Any) -> None:
        def run() -> int:
            for name, group in groups.items():
                given[name] = group(**{each.name: given.pop(each.name) for each in parameters[name]})
            check_together(*(given[name] for name in groups))
            return function(**given)

        exit_with(run)

    plain = inspect.signature(function).parameters.values()
    flat = [parameters.get(each.name) or [each.replace(annotation=hints[each.name])] for each in plain]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for group in flat for each in group]
    if any(group.usual for group in groups.values()):
        keywords.append(HELP_ALL)
    cast(Any, command).__signature__ = inspect.Signature(keywords)
    return command


def _parameters(group: type[OptionGroup], usual: Collection[str]) -> list[inspect.Parameter]:
    """Return one parameter for each field that is an option of the command line."""
    return [
        _parameter(option, hidden=bool(usual) and option.name not in usual)
        for option in declared(group).values()
        if option.shown.listed
    ]


def _parameter(option: Declared, hidden: bool) -> inspect.Parameter:
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.default is MISSING else option.default,
        annotation=Annotated[option.plain_type, _info(option, hidden)],
    )


def _info(option: Declared, hidden: bool) -> Any:
    """Return the parameter for Typer."""
    offers = completer(option)
    if option.shown.argument:
        return typer.Argument(help=option.help, autocompletion=offers)
    # Typer adds --no-NAME to a bool, unless the name of the option is given.
    names = option.shown.names or ((option.spelling,) if option.plain_type is bool else ())
    panel = option.shown.panel or vars(option.group).get("panel")
    return typer.Option(*names, help=option.help, rich_help_panel=panel, hidden=hidden, autocompletion=offers)


def exit_with(work: Callable[[], int]) -> None:
    """Run a command and exit with its code. A user's mistake is shown in one line on stderr, with exit code 2."""
    from continuum_bench.user_errors import USER_ERRORS  # noqa: PLC0415 - keeps --help fast

    try:
        with raising():
            code = work()
    except USER_ERRORS as error:
        typer.echo(f"error: {harmless(str(error))}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        if error.errno not in FAULTS_OF_FILES:
            raise
        place = "" if error.filename is None else f"{error.filename}: "
        typer.echo(f"error: {harmless(place)}{error.strerror}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        forget()
        typer.echo("stopped", err=True)
        raise typer.Exit(INTERRUPTED) from error
    if code:
        raise typer.Exit(code)
