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

from continuum_traces.importers.described import (
    CHARACTERS,
    ESTIMATED,
    Imported,
    RequestUsage,
    calls_sharing_a_time,
    differing_totals,
    inner,
    listed,
    number,
    usage_of,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.terminal_bench import keystrokes, typed_commands
from continuum_traces.importers.text_tokens import message_text, message_tokens
from continuum_traces.programs.jsonl import TraceError, json_object
from continuum_traces.programs.lines import digest
from continuum_traces.programs.truth import OUTPUT, PROMPT
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
    data = _trajectory(where, text)
    messages = listed(where, data, "messages", dict)
    program_id = str(data.get("instance_id") or Path(where).name.removesuffix(".traj.json"))
    requests, estimated = _requests(file, where, messages)
    file.assume("program", ESTIMATED, int(estimated))
    stats = inner(where, inner(where, data, "info"), "model_stats")
    file.assumptions.add(*differing_totals(program_id, {"requests": stats.get("api_calls")}, requests))
    opening = takewhile(lambda message: not _is_answer(message), messages)
    program = Program(program_id, (), "mini-swe-agent", _model(messages))
    return Imported(program, requests, tuple(map(message_text, opening)), empty="no answer in it")


def _trajectory(where: str, text: str) -> Mapping[str, Any]:
    """Return the trajectory, which is only its messages in the oldest files."""
    return {"messages": json.loads(text)} if text.lstrip().startswith("[") else json_object(where, text, "messages")


def _is_answer(message: Message) -> bool:
    """Return whether the message is the model's: a chat completion's, or a whole response of the Responses API."""
    return message.get("role") == "assistant" or message.get("object") == "response"


def _requests(file: Source, name: str, messages: Sequence[Message]) -> tuple[list[RequestUsage], bool]:
    requests, estimated, prompt = [], False, 0
    for index, message in enumerate(messages):
        text_tokens = message_tokens(_plain(message), file.assume)
        if _is_answer(message):
            where = f"{name}: messages[{index}]"
            usage = _usage(where, message)
            estimated = estimated or not usage
            request = usage_of(where, usage, _calls(where, message, messages[index + 1 :]))
            counted = (request.prompt_tokens or prompt, request.output_tokens or text_tokens)
            named = str(_response(message).get("id") or "")
            guessed = {name: CHARACTERS for name in (PROMPT, OUTPUT) if not getattr(request, f"{name}_tokens")}
            request = replace(request, response_id=named, estimated=guessed)
            requests.append(replace(request, prompt_tokens=counted[0], output_tokens=counted[1]))
        prompt += text_tokens
    return requests, estimated


def _plain(message: Message) -> Message:
    """Return a response of the Responses API as a message whose parts are its output."""
    return {"content": message.get("output")} if message.get("object") == "response" else message


def _calls(where: str, message: Message, later: Sequence[Message]) -> tuple[ToolCall, ...]:
    commands = _commands(message)
    names = [first_program(command) or "bash" for command in commands]
    return calls_sharing_a_time(names, _tool_seconds(where, message, later), map(digest, commands))


def _usage(where: str, message: Message) -> Mapping[str, Any]:
    inner(where, message, "extra")
    return inner(where, _response(message), "usage")


def _response(message: Message) -> Mapping[str, Any]:
    """Return the server's answer of which a message is made; empty if the file has none."""
    if message.get("object") == "response":
        return message
    extra = message.get("extra")
    response = extra.get("response") if isinstance(extra, dict) else None
    return response if isinstance(response, dict) else {}


def _commands(message: Message) -> list[str]:
    """Return the commands of a message: its parsed actions, else its tool calls, else its only fenced block, else the
    commands of an answer in Terminal-Bench's form."""
    actions = (message.get("extra") or {}).get("actions") or []
    commands = [action.get("command", "") for action in actions if isinstance(action, dict)]
    if not commands:
        commands = [_argument(call) for call in message.get("tool_calls") or []]
    if not commands:
        blocks = _FENCE.findall(message_text(message))
        commands = blocks if len(blocks) == 1 else []
    if not commands:
        commands = [keystrokes(list(typed_commands(message_text(message))))]
    return [command for command in commands if command]


def _argument(call: Message) -> str:
    try:
        return str(json.loads(call["function"]["arguments"]).get("command", ""))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""


def _tool_seconds(where: str, message: Message, later: Sequence[Message]) -> float | None:
    """Return the seconds from the parsed answer to the last observation before the next answer; None: not recorded."""
    observations = takewhile(lambda after: not _is_answer(after), later)
    extras = [inner(where, after, "extra") for after in observations if _is_observation(after)]
    ends = [number(where, extra, "timestamp") for extra in extras if "timestamp" in extra]
    start = inner(where, message, "extra")
    return max(0.0, max(ends) - number(where, start, "timestamp")) if ends and "timestamp" in start else None


def _is_observation(message: Message) -> bool:
    return message.get("role") in ("tool", "user") or message.get("type") == "function_call_output"


def _model(messages: Sequence[Message]) -> str | None:
    extras = ((message.get("extra") or {}).get("response") for message in messages)
    responses = [*messages, *(each for each in extras if isinstance(each, dict))]
    return next((str(each["model"]) for each in responses if each.get("model")), None)


IMPORTERS = (
    Importer(
        "mini-swe-agent",
        read_mini_swe,
        (
            Signs({"messages": list, "trajectory_format": "mini-swe-agent*"}, more=("info", "instance_id")),
            Signs({"messages": list, "info": dict, "messages.role": str}, more=("instance_id", "info.model_stats")),
            Signs({"role": str, "content": object}, file="*.traj.json"),
        ),
        is_file=is_archive,
    ),
)
