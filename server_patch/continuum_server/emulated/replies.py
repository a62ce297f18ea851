"""The emulated model's answers: scripts by program and turn, and filler text for the rest.

A script is JSON lines, one program each::

    {"program": "a", "replies": [{"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}]}, {"text": "..."}]}

A reply is ``text``, ``token_ids``, or ``tool_calls`` (with or without text before them). Program ``"*"`` serves every
program that has no script of its own. A program gets its next reply when the reply before reached its end; after an
abort it gets the same reply again. The script of a program that has ended (its last step, or a release) begins anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuum_server.emulated.settings import EmulatedError

ANY_PROGRAM = "*"

Encode = Callable[[str], list[int]]


def render_tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as the bundled chat template writes it, so that the next prompt repeats these very tokens."""
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer, without the token that ends it."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None

    def tokens(self, encode: Encode) -> list[int]:
        return list(self.token_ids) if self.token_ids is not None else encode(self.text or "")


class Script:
    """Replies of every scripted program."""

    def __init__(self, replies: Mapping[str, Sequence[Reply]]) -> None:
        self._replies = {program: tuple(found) for program, found in replies.items()}
        self._served: dict[str, int] = {}

    def due(self, program: str | None) -> Reply | None:
        """The program's next reply; None: no script covers it."""
        replies = self._replies_of(program)
        index = self._served.get(program or "", 0)
        return replies[index] if index < len(replies) else None

    def delivered(self, program: str | None) -> None:
        """The program's reply reached its end."""
        if program is not None and self._replies_of(program):
            self._served[program] = self._served.get(program, 0) + 1

    def ended(self, program: str | None) -> None:
        """The program is over. If it comes again, it gets its first reply."""
        self._served.pop(program or "", None)

    def _replies_of(self, program: str | None) -> tuple[Reply, ...]:
        if program is not None and program in self._replies:
            return self._replies[program]
        return self._replies.get(ANY_PROGRAM, ()) if program is not None else ()


def read_script(path: Path) -> Script:
    """The script in that file.

    Raises:
        EmulatedError: naming file, line and field.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise EmulatedError(f"{path}: cannot read: {error}") from error
    programs: dict[str, list[Reply]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            program, replies = _program(f"{path}:{number}", line)
            if program in programs:
                raise EmulatedError(f"{path}:{number}: program: {program!r} is there already")
            programs[program] = replies
    return Script(programs)


def _program(where: str, line: str) -> tuple[str, list[Reply]]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise EmulatedError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("program"), str):
        raise EmulatedError(f"{where}: program: expected text")
    replies = data.get("replies")
    if not isinstance(replies, list):
        raise EmulatedError(f"{where}: replies: expected a list")
    return data["program"], [_reply(f"{where}: replies[{index}]", reply) for index, reply in enumerate(replies)]


def _reply(where: str, data: Any) -> Reply:
    if not isinstance(data, dict) or not data.keys() & {"text", "token_ids", "tool_calls"}:
        raise EmulatedError(f"{where}: expected text, token_ids or tool_calls")
    if "token_ids" in data:
        ids = data["token_ids"]
        if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
            raise EmulatedError(f"{where}.token_ids: expected whole numbers")
        return Reply(token_ids=tuple(ids))
    parts = [data["text"]] if "text" in data else []
    for number, call in enumerate(data.get("tool_calls", [])):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise EmulatedError(f"{where}.tool_calls[{number}].name: expected text")
        parts.append(render_tool_call(call["name"], call.get("arguments", {})))
    if not all(isinstance(part, str) for part in parts):
        raise EmulatedError(f"{where}.text: expected text")
    return Reply(text="\n".join(parts))
