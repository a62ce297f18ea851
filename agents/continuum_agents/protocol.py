"""What the harness and an agent's process say to each other: JSON, one message a line, over stdin and stdout.

The harness says one ``start`` and nothing more; stdin closed before it means "not needed", after it "stop". The agent
says ``ready`` once its framework is loaded, then ``turn`` and ``tool`` as they end, and ``done`` or ``error`` as its
last word. SIGTERM asks it to stop: it kills its tool, ends its program and says ``done``. One process runs one program.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

MARK_VARIABLE = "CONTINUUM_AGENT_MARK"
"""In the environment of the agent and of everything it starts: tools run in sessions of their own, and outlive it."""

CHECK = "--check"
"""With this argument an agent's process says nothing and runs nothing: it reads a start, and ends with status 1 and one
line on stderr where the framework cannot be configured so."""

LOCAL, BUBBLEWRAP, DOCKER = "local", "bubblewrap", "docker"

BATCH_LABEL, PROGRAM_LABEL = "continuum.batch", "continuum.program"
"""Labels of a program's container: by them strays are found after a crash."""


class ProtocolError(Exception):
    """A line that is none of these messages."""


@dataclass(frozen=True, slots=True)
class Start:
    """Run this program."""

    kind: ClassVar[str] = "start"
    program_id: str
    task: str
    """What the agent is asked to do."""
    workspace: str
    """Folder its commands run in."""
    base_url: str
    """Of the server, up to and with /v1."""
    model: str
    run_dir: str
    """Directory to record to."""
    trajectory: str
    """File for the framework's own record."""
    instance_id: str = ""
    """The task's name in its benchmark; a program that is tried again has another id."""
    dialect: str = "vllm"
    content: str = "digest"
    """How much text is recorded: none, digest, full."""
    config: tuple[str, ...] = ()
    """The framework's own configuration: files, names of its own, KEY=VALUE."""
    step_limit: int | None = None
    """None: the configuration's."""
    tool_limit_s: int | None = None
    """Seconds one tool may take; None: the configuration's."""
    environment: str = LOCAL
    """Where its commands run: local, bubblewrap, docker."""
    image: str | None = None
    """The task's Docker image."""
    labels: tuple[str, ...] = ()
    """NAME=VALUE, for its container."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The framework is loaded."""

    kind: ClassVar[str] = "ready"
    framework_version: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A reply of the model has come."""

    kind: ClassVar[str] = "turn"
    turn: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool has run."""

    kind: ClassVar[str] = "tool"
    turn: int
    name: str
    seconds: float
    returncode: int | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The program is over, as the framework sees it."""

    kind: ClassVar[str] = "done"
    exit_status: str
    submission: str = ""
    turns: int = 0
    passed: bool | None = None
    """By the framework's own scorer; None where it has none, or it was not run."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It could not go on."""

    kind: ClassVar[str] = "error"
    message: str
    details: dict[str, Any] = field(default_factory=dict)


Event = Ready | TurnEnded | ToolEnded | Done | Failed
_EVENTS: dict[str, type[Event]] = {event.kind: event for event in (Ready, TurnEnded, ToolEnded, Done, Failed)}

Message = TypeVar("Message", bound=Any)


def to_line(message: Start | Event) -> str:
    """A message as a line, with its end."""
    return json.dumps({"type": message.kind, **asdict(message)}, separators=(",", ":")) + "\n"


def read_start(line: str) -> Start:
    """Raises:
    ProtocolError: anything but a start.
    """
    data = _object(line)
    if data.pop("type", None) != Start.kind:
        raise ProtocolError(f"expected start: {line[:200]!r}")
    lists = {name: tuple(data.get(name, ())) for name in ("config", "labels")}
    return _made(Start, {**data, **lists}, line)


def read_event(line: str) -> Event:
    """Raises:
    ProtocolError: not an event.
    """
    data = _object(line)
    kind = _EVENTS.get(str(data.pop("type", None)))
    if kind is None:
        raise ProtocolError(f"no such event: {line[:200]!r}")
    return _made(kind, data, line)


def _object(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not JSON: {line[:200]!r}") from error
    if not isinstance(data, dict):
        raise ProtocolError(f"expected an object: {line[:200]!r}")
    return data


def _made(kind: type[Message], data: dict[str, Any], line: str) -> Message:
    known = {part.name for part in fields(kind)}
    try:
        made: Message = kind(**{name: value for name, value in data.items() if name in known})
    except TypeError as error:
        raise ProtocolError(f"{error}: {line[:200]!r}") from error
    return made
