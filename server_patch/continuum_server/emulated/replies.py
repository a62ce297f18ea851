"""Scripted answers of the emulated model.

A script is a file of JSON lines, one for each program::

    {"program": "a", "replies": [{"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]}, {"text": "..."}]}

A reply is ``text``, ``token_ids``, or ``tool_calls`` (with or without text before them). The script of program ``"*"``
serves every program that has no script of its own, and requests that name no program: these get the reply whose number
is that of the answers in their prompt. A program that a harness plays again as ``ID#2``, ``ID#3`` ... has
the script of ``ID``. A program gets its next reply when the reply before reached its end;
after an abort it gets the same reply again. When a program has ended (after its last request, or a release), a program
of the same name gets the first reply again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from continuum_server.emulated.settings import EmulatedError

ANY_PROGRAM = "*"
_AGAIN = re.compile(r"#[0-9]+(?=/|$)")
"""What a harness adds to a program's id when it plays the program again; a child's id continues with ``/``."""

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    name: str
    arguments: Any = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the call as the bundled chat template writes it, so that the next prompt repeats the same tokens."""
        return f"<tool_call>\n{json.dumps(asdict(self), ensure_ascii=False)}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One scripted answer, without the token that ends it."""

    text: str | None = None
    token_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None = None
    tool_calls: tuple[ScriptedCall, ...] | None = None

    def __post_init__(self) -> None:
        if all(part is None for part in (self.text, self.token_ids, self.tool_calls)):
            raise ValueError("expected text, token_ids or tool_calls")

    def tokens(self, encode: Encode) -> list[int]:
        if self.token_ids is not None:
            return list(self.token_ids)
        parts = [] if self.text is None else [self.text]
        return encode("\n".join([*parts, *map(str, self.tool_calls or ())]))


@dataclass(frozen=True, slots=True)
class _Line:
    program: str
    replies: tuple[ScriptedAnswer, ...]


class Script:
    """The replies of each scripted program, and how many of them it has received."""

    def __init__(self, replies: Mapping[str, Sequence[ScriptedAnswer]]) -> None:
        self._replies = replies
        self._served: dict[str, int] = {}

    def due(self, program: str | None, answered: int = 0) -> ScriptedAnswer | None:
        """Return the program's next reply; None: the script has no more replies for this program.

        Args:
            program: the program's id; None: the request names none.
            answered: number of answers in the prompt, which say how far an unnamed conversation is.
        """
        replies = self._replies_of(program)
        index = answered if program is None else self._served.get(program, 0)
        return replies[index] if index < len(replies) else None

    def delivered(self, program: str | None) -> None:
        """Note that the program's reply reached its end."""
        if program is not None and self._replies_of(program):
            self._served[program] = self._served.get(program, 0) + 1

    def ended(self, program: str | None) -> None:
        """Note that the program has ended. A program of the same name gets the first reply again."""
        self._served.pop(program or "", None)

    def _replies_of(self, program: str | None) -> Sequence[ScriptedAnswer]:
        names = (program or "", _AGAIN.sub("", program or ""), ANY_PROGRAM)
        return next((self._replies[name] for name in names if name in self._replies), ())


def read_script(path: Path) -> Script:
    """Read a script.

    Raises:
        EmulatedError: the file cannot be read, or a line is not as described at the top of this module.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise EmulatedError(f"{path}: cannot read: {error}") from error
    programs: dict[str, Sequence[ScriptedAnswer]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            script = _read_line(f"{path}:{number}", line)
            if script.program in programs:
                raise EmulatedError(f"{path}:{number}: program: {script.program!r} is there already")
            programs[script.program] = script.replies
    return Script(programs)


def _read_line(where: str, line: str) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError as error:
        raise EmulatedError(f"{where}: {error}") from error
    except msgspec.DecodeError as error:
        raise EmulatedError(f"{where}: not JSON: {error}") from error
