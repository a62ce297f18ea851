"""The messages between the harness and an agent's process: JSON lines over the process's stdin and stdout.

One process runs one program. It sends ``ready`` when its framework is loaded, and the harness then sends one ``start``.
If the harness closes stdin before ``start``, the process is not needed; if it closes stdin later, the process has to
stop. The process sends ``turn`` and ``tool`` when a turn or a tool has ended, ``server`` when the server has failed a
call or answers again, and ``done`` or ``error`` at the end. On SIGTERM it kills its tool, ends its program and sends
``done``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

MARK_VARIABLE = "CONTINUUM_AGENT_MARK"
"""An environment variable of the agent and its child processes, by which the agent finds commands in its terminals."""

CHECK = "--check"
"""With this argument an agent's process runs no program. It reads a start, and exits with status 1 and one line on
stderr if the framework cannot use the start's configuration."""

LIVE = "live"
"""The web itself, not a recorded one."""
ANSWERS = "answers.json"
"""The file of a batch's answers, in its directory."""

LOCAL, BUBBLEWRAP, DOCKER = "local", "bubblewrap", "docker"

BATCH_LABEL, PROGRAM_LABEL = "continuum.batch", "continuum.program"
"""Labels of a program's container, by which containers that are left after a crash can be removed."""


class ProtocolError(Exception):
    """A line is not a message of the protocol."""


@dataclass(frozen=True, slots=True)
class Start:
    """The harness tells the process to run a program."""

    kind: ClassVar[str] = "start"
    program_id: str = ""
    task: str = ""
    """The task in words."""
    workspace: str = ""
    """The folder in which the agent's commands run."""
    base_url: str = ""
    """The server's base URL, which ends with /v1."""
    model: str = ""
    run_dir: str = ""
    """The directory to which the program is recorded."""
    trajectory: str = ""
    """The file to which the framework writes its own record."""
    instance_id: str = ""
    """The task's name in its benchmark. A second attempt at a task has the same name, but another program id."""
    dialect: str = "vllm"
    content: str = "digest"
    """How much text is recorded: none, digest, full."""
    config: tuple[str, ...] = ()
    """The framework's configuration: files, names that the framework knows, or KEY=VALUE."""
    step_limit: int | None = None
    """The largest number of calls of the model; None: as the configuration says."""
    tool_limit_s: int | None = None
    """Seconds that a tool may take; None: as the configuration says."""
    environment: str = LOCAL
    """Where the agent's commands run: local, bubblewrap, docker."""
    image: str | None = None
    """The task's Docker image."""
    labels: tuple[str, ...] = ()
    """Labels of the container, as NAME=VALUE."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The framework is loaded."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The model has replied."""

    kind: ClassVar[str] = "turn"


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool has run."""

    kind: ClassVar[str] = "tool"
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server has failed a call, or has answered a later one."""

    kind: ClassVar[str] = "server"
    failure: str | None = None
    """What happened; None: it answers again."""


@dataclass(frozen=True, slots=True)
class Done:
    """The program has ended."""

    kind: ClassVar[str] = "done"
    exit_status: str
    submission: str = ""
    passed: bool | None = None
    """The result of the framework's own scorer; None if there is no scorer or it was not run."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The program failed with an error of the process."""

    kind: ClassVar[str] = "error"
    message: str


Event = Ready | TurnEnded | ToolEnded | ServerState | Done | Failed
_EVENTS: dict[str, type[Event]] = {
    event.kind: event for event in (Ready, TurnEnded, ToolEnded, ServerState, Done, Failed)
}


def to_line(message: Start | Event) -> str:
    """Return a message as a line of JSON, with its line end."""
    return json.dumps({"type": message.kind, **asdict(message)}, separators=(",", ":")) + "\n"


def read_start(line: str) -> Start:
    """Read the start in a line.

    Raises:
        ProtocolError: the line is not a start.
    """
    start: Start = _read(line, {Start.kind: Start})
    return start


def read_event(line: str) -> Event:
    """Read the event in a line.

    Raises:
        ProtocolError: the line is not an event.
    """
    event: Event = _read(line, _EVENTS)
    return event


def _read(line: str, types: Mapping[str, Any]) -> Any:
    """Read a message of one of these types, and the fields that the type has. A later version may send more."""
    try:
        data = json.loads(line)
        message_type = types[data["type"]]
        given = {field.name: data[field.name] for field in fields(message_type) if field.name in data}
        return message_type(**{name: tuple(got) if isinstance(got, list) else got for name, got in given.items()})
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a message: {line[:200]!r} ({error!r})") from error
