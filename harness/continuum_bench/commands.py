"""How declared options become a command.

A command is a function that takes dataclasses of options, and Typer's own parameters where they are few. It returns an
exit code. ``add_command`` registers it with one parameter for each option.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, wraps
from itertools import pairwise
from typing import Annotated, Any, cast, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from continuum_bench.ctrl_c import INTERRUPTED, forget, raising
from continuum_bench.options.declare import check, extras_of, hints_of, owner_of, spelling
from continuum_bench.options.together import Option, check_together, option, options_of

Command = Callable[..., int]


def add_command(app: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
    """Register the function below as a command of ``app``.

    Args:
        app: the group of commands.
        name: name of the command; default the function's.
        settings: further arguments of ``typer.Typer.command``.
    """

    def register(function: Command) -> Command:
        app.command(name or function.__name__, **settings)(with_flat_signature(function))
        return function

    return register


def with_flat_signature(function: Command) -> Callable[..., None]:
    """The same command with one parameter for each option of its dataclasses, and with errors as one line."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: _parameters(hint) for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(function)
    def command(**given: Any) -> None:
        def run() -> int:
            for name, parameters in groups.items():
                given[name] = hints[name](**{each.name: given.pop(each.name) for each in parameters})
            for name, value in given.items():
                check(name, value, hints[name])
            check_together(_options(given))
            return function(**given)

        def _options(given: Mapping[str, Any]) -> dict[str, Option]:
            plain = {name: value for name, value in given.items() if name not in groups}
            found = {name: option(name, hints[name], value, own[name].default) for name, value in plain.items()}
            return found | {name: each for group in groups for name, each in options_of(given[group]).items()}

        exit_with(run)

    own = inspect.signature(function).parameters
    flat = [groups.get(name) or [each.replace(annotation=hints[name])] for name, each in own.items()]
    every = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for group in flat for each in group]
    cast(Any, command).__signature__ = inspect.Signature(every)
    return command


def _parameters(group: Any) -> list[inspect.Parameter]:
    """One parameter for each field that is an option."""
    found = [(each, _annotation(group, each)) for each in fields(group)]
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=annotation,
        )
        for each, annotation in found
        if annotation is not None
    ]


def _annotation(group: Any, field: Field[Any]) -> Any:
    """A field's type and what Typer is to know of it; None for a field that is no option."""
    hint = hints_of(group)[field.name]
    owner = owner_of(group, field.name)
    given = next((extra for extra in extras_of(hint) if isinstance(extra, ParameterInfo)), None)
    sentence = _sentences(owner.__module__)[owner.__name__].get(field.name)
    if given is None and sentence is None:
        return None
    plain = get_args(hint)[0] if extras_of(hint) else hint
    # Typer gives a bool --no-NAME too, unless its name is written out.
    names = [spelling(field.name, hint)] if plain is bool else []
    info = typer.Option(*names) if given is None else copy(given)
    info.help = info.help or sentence
    info.rich_help_panel = info.rich_help_panel or vars(owner).get("panel")
    return Annotated[plain, info]


@cache
def _sentences(module: str) -> dict[str, dict[str, str]]:
    """The sentences under the fields of a module's classes."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_texts(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _texts(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            yield cast(ast.Name, field.target).id, " ".join(str(text.value.value).split())


def exit_with(work: Callable[[], int]) -> None:
    """Run a command. A user's mistake is one line on stderr and exit code 2, never a traceback."""
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
