"""Import mini-swe-agent trajectories (``*.traj.json``): a file or a tar archive.

A turn is an assistant message with the server's token counts. The trajectory says when the answer was parsed and when
each observation was formatted, so that only the total time of a turn's tools is known. Older files have no token
counts; lengths are then estimated from characters.
"""

from __future__ import annotations

import json
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.terminal_bench import keystrokes, typed_commands
from continuum_traces.importers.usage import (
    ESTIMATED,
    Imported,
    RequestUsage,
    calls_sharing_a_time,
    estimate_tokens,
    inner,
    listed,
    number,
    usage_of,
)
from continuum_traces.jsonl import TraceError, json_object
from continuum_traces.lines import digest
from continuum_traces.schema import Program, ToolCall
from continuum_traces.shell import first_program

_FENCE = re.compile(r"```(?:bash|sh|mswea_bash_command)\s*\n(.*?)\n```", re.DOTALL)

Message = dict[str, Any]


def read_mini_swe(file: Source) -> Iterator[Imported]:
    """mini-swe-agent's ``*.traj.json``: a trajectory, or a tar archive of trajectories.

    Raises:
        TraceError: a file has a fault. The message names the file and the fault.
    """
    texts = _members(file.path) if is_archive(file.path) else [(str(file), file.text())]
    if not texts:
        raise TraceError(f"{file}: no trajectory (*.traj.json) in it")
    for where, text in texts:
        yield _program(file, where, text)


def is_archive(path: Path) -> bool:
    """Return whether the file is a tar archive, compressed or not."""
    try:
        return path.is_file() and tarfile.is_tarfile(path)
    except (OSError, EOFError, lzma.LZMAError):
        return False


def _members(path: Path) -> list[tuple[str, str]]:
    try:
        with tarfile.open(path) as archive:
            files = ((each.name, archive.extractfile(each)) for each in archive if each.name.endswith(".traj.json"))
            return [(f"{path}:{name}", file.read().decode()) for name, file in files if file is not None]
    except (OSError, tarfile.TarError, UnicodeDecodeError, EOFError) as error:
        raise TraceError(f"{path}: cannot read: {error}") from error


def _program(file: Source, where: str, text: str) -> Imported:
    data = json_object(where, text, "messages")
    messages = listed(where, data, "messages", dict)
    program_id = data.get("instance_id") or Path(where).name.removesuffix(".traj.json")
    requests, estimated = _requests(where, messages)
    file.assume("program", ESTIMATED, int(estimated))
    return Imported(Program(str(program_id), (), "mini-swe-agent", _model(messages)), requests, _opening(messages))


def _opening(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return the messages before the model's first answer."""
    asked = takewhile(lambda message: message.get("role") != "assistant", messages)
    return tuple(map(_text, asked))


def _requests(name: str, messages: Sequence[Message]) -> tuple[list[RequestUsage], bool]:
    requests, estimated, prompt = [], False, 0
    for index, message in enumerate(messages):
        text_tokens = estimate_tokens(_text(message))
        if message.get("role") == "assistant":
            where = f"{name}: messages[{index}]"
            usage = _usage(where, message)
            estimated = estimated or not usage
            tools = _calls(where, message, messages[index + 1 :])
            request = usage_of(where, usage, tools)
            requests.append(
                replace(
                    request,
                    prompt_tokens=request.prompt_tokens or prompt,
                    output_tokens=request.output_tokens or text_tokens,
                )
            )
        prompt += text_tokens
    return requests, estimated


def _calls(where: str, message: Message, later: Sequence[Message]) -> tuple[ToolCall, ...]:
    commands = _commands(message)
    names = [first_program(command) or "bash" for command in commands]
    return calls_sharing_a_time(names, _tool_seconds(where, message, later), map(digest, commands))


def _usage(where: str, message: Message) -> Mapping[str, Any]:
    response = inner(where, message, "extra").get("response")
    return inner(where, response, "usage") if isinstance(response, dict) else {}


def _commands(message: Message) -> list[str]:
    """Return the commands of a message: its parsed actions, else its tool calls, else its only fenced block, else the
    commands of an answer in Terminal-Bench's form."""
    actions = (message.get("extra") or {}).get("actions") or []
    commands = [action.get("command", "") for action in actions if isinstance(action, dict)]
    if not commands:
        commands = [_argument(call) for call in message.get("tool_calls") or []]
    if not commands:
        blocks = _FENCE.findall(_text(message))
        commands = blocks if len(blocks) == 1 else []
    if not commands:
        commands = [keystrokes(list(typed_commands(_text(message))))]
    return [command for command in commands if command]


def _argument(call: Message) -> str:
    try:
        return str(json.loads(call["function"]["arguments"]).get("command", ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""


def _tool_seconds(where: str, message: Message, later: Sequence[Message]) -> float | None:
    """Return the seconds from the parsed answer to the last observation before the next answer; None: not recorded."""
    observations = takewhile(lambda after: after.get("role") != "assistant", later)
    seen = [inner(where, after, "extra") for after in observations if after.get("role") in ("tool", "user")]
    ends = [number(where, extra, "timestamp") for extra in seen if "timestamp" in extra]
    start = inner(where, message, "extra")
    return max(0.0, max(ends) - number(where, start, "timestamp")) if ends and "timestamp" in start else None


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = message.get("tool_calls")
    return str(content or "") + (json.dumps(calls) if calls else "")


def _model(messages: Sequence[Message]) -> str | None:
    responses = ((message.get("extra") or {}).get("response") for message in messages)
    return next((str(each["model"]) for each in responses if isinstance(each, dict) and each.get("model")), None)


IMPORTERS = (
    Importer(
        "mini-swe-agent",
        read_mini_swe,
        (
            Signs({"messages": list, "trajectory_format": "mini-swe-agent*"}, more=("info", "instance_id")),
            Signs({"messages": list, "info": dict, "messages.role": str}, more=("instance_id", "info.model_stats")),
        ),
        is_file=is_archive,
    ),
)
