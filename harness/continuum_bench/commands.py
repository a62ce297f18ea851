"""Turns a function that takes dataclasses of options into a command of Typer."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import MISSING, is_dataclass
from functools import cache, wraps
from itertools import pairwise
from textwrap import TextWrapper
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from continuum_bench.ctrl_c import INTERRUPTED, forget, raising
from continuum_bench.options.declare import Option, declared
from continuum_bench.options.together import check_together

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


class HelpfulCommand(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_help(self, ctx, formatter.width, {}))


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
    parameters = {name: _parameters(group) for name, group in groups.items()}

    @wraps(function)
    def command(**given: Any) -> None:
        def run() -> int:
            for name, group in groups.items():
                given[name] = group(**{each.name: given.pop(each.name) for each in parameters[name]})
            check_together(*(given[name] for name in groups))
            return function(**given)

        exit_with(run)

    own = inspect.signature(function).parameters.values()
    flat = [parameters.get(each.name) or [each.replace(annotation=hints[each.name])] for each in own]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for group in flat for each in group]
    cast(Any, command).__signature__ = inspect.Signature(keywords)
    return command


def _parameters(group: type) -> list[inspect.Parameter]:
    """Return one parameter for each field that is an option of the command line."""
    return [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.default is MISSING else option.default,
            annotation=Annotated[option.plain_type, info],
        )
        for option in declared(group).values()
        if (info := _info(option)) is not None
    ]


def _info(option: Option) -> Any:
    """Return the parameter for Typer, or None if the field has no help text."""
    sentence = field_sentences(option.owner.__module__)[option.owner.__name__].get(option.name)
    if option.info is None and sentence is None:
        return None
    # Typer adds --no-NAME to a bool, unless the name of the option is given.
    names = [option.spelling] if option.plain_type is bool else []
    info = copy(option.info or typer.Option(*names))
    info.help = info.help or sentence
    info.rich_help_panel = info.rich_help_panel or vars(option.owner).get("panel")
    return info


@cache
def field_sentences(module: str) -> dict[str, dict[str, str]]:
    """Return the sentences below the fields of a module's classes, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_texts(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _texts(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            yield cast(ast.Name, field.target).id, " ".join(str(text.value.value).split())


def exit_with(work: Callable[[], int]) -> None:
    """Run a command and exit with its code. A user's mistake is shown in one line on stderr, with exit code 2."""
    from continuum_bench.user_errors import USER_ERRORS  # noqa: PLC0415 - keeps --help fast

    try:
        with raising():
            code = work()
    except USER_ERRORS as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        forget()
        typer.echo("stopped", err=True)
        raise typer.Exit(INTERRUPTED) from error
    if code:
        raise typer.Exit(code)
