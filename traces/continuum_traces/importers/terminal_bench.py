"""Import Terminal-Bench trajectories (``trajectory.json``, the ATIF format of its harness): one file per run.

A turn is a step of the agent with token counts. All its keystrokes are typed into one shell and count as one tool. The
tool's key is the first program that the keystrokes run, and its time is the wait that the agent asked for, because the
harness waits for that time. The times of other tools are not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import PurePath
from typing import Any, TypeGuard

from continuum_traces.grouped import grouped
from continuum_traces.importers.described import (
    UNKNOWN,
    Imported,
    RequestUsage,
    differing_totals,
    inner,
    listed,
    number,
    usage_of,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.programs.assumptions import Assumption, Assumptions
from continuum_traces.programs.lines import digest
from continuum_traces.programs.truth import TOOLS
from continuum_traces.schema import Program, ToolCall
from continuum_traces.shell import first_program

SHELL = "bash"
MAX_WAIT_S = 60.0
"""The longest time for which the harness waits for one command."""
WAITS = "the waits that the agent asks for with its keystrokes"
"""How the tool times are estimated."""

Object = Mapping[str, Any]
NO_STEPS = "left out: its trajectory is in no file"
ONE_ANSWER = "a further part of the answer before it: counted with it"
TOTALS = {"prompt_tokens": "prompt", "output_tokens": "completion", "cached_tokens": "cached"}


@dataclass(frozen=True, slots=True)
class Part:
    """A trajectory, and those that it started."""

    imported: Imported
    children: Mapping[str, int | None]
    """By their names, the turn that started them; None: before the first."""
    names: frozenset[str]
    """Names under which other trajectories refer to it."""
    file: PurePath
    goes_on: str = ""
    """The file that continues it."""
    totals: Mapping[str, Any] = field(default_factory=dict)
    """The source's own sums."""
    within: Sequence[RequestUsage] = ()
    """Requests of sub-agents whose steps stand between its own."""


def read_terminal_bench(file: Source) -> Iterator[Part]:
    """ATIF (``trajectory.json``; Terminal-Bench, Harbor): one trajectory, with those of its sub-agents in it or in
    other files of the folder. A tool's time is how long the agent asked to wait.

    Raises:
        TraceError: the file has a fault. The message names file and field.
    """
    yield from _parts(file, str(file), file.object("steps"), None)


def join_terminal_bench(parts: Iterable[Part], assumptions: Assumptions) -> Iterator[Imported]:
    """Yield the programs, each with its parent, which may be in another file."""
    trajectories = list(_continued(list(parts), assumptions))
    for part in trajectories:
        assumptions.add(*_differing(part))
    parents = {
        child: (part.imported.program.program_id, turn)
        for part in trajectories
        for child, turn in part.children.items()
    }
    names = {name for part in trajectories for name in part.names}
    assumptions.assume("sub-agent", NO_STEPS, len(parents.keys() - names))
    for part in trajectories:
        program = part.imported.program
        parent, turn = next(
            (parents[name] for name in sorted(part.names) if name in parents), (program.parent_id, None)
        )
        yield replace(part.imported, program=replace(program, parent_id=parent, parent_turn=turn))


def _parts(file: Source, where: str, data: Object, parent_id: str | None) -> Iterator[Part]:
    steps = listed(where, data, "steps", dict)
    keys = ("session_id", "trajectory_id") if parent_id is None else ("trajectory_id", "session_id")
    name = str(next((data[key] for key in keys if data.get(key)), file.path.parent.name))
    program = Program(name, (), "terminal-bench", inner(where, data, "agent").get("model_name"), parent_id=parent_id)
    requests, children = list[RequestUsage](), dict[str, int | None]()
    sides = grouped((_side(where, step), (n, step)) for n, step in enumerate(steps))
    for request, started in _requests(file, where, [step for _, step in sides.pop("", [])]):
        children |= dict.fromkeys(started, len(requests) if request else None)
        requests += [request] if request else []
    inside = list[Part]()
    for agent, side in sides.items():
        before = [step for step in steps[: side[0][0]] if not _side(where, step)]
        turns = sum(request is not None for request, _ in _requests(Source(file.path), where, before))
        children[agent] = turns - 1 if turns else None
        their = {"trajectory_id": agent, "agent": data.get("agent"), "steps": [_on_its_own(step) for _, step in side]}
        inside += _parts(file, where, their, name)
    metrics = inner(where, data, "final_metrics")
    totals = {total: metrics.get(f"total_{field}_tokens") for total, field in TOTALS.items()}
    yield Part(
        Imported(program, requests, _opening(steps)),
        children,
        frozenset({name, file.path.name}),
        file.path,
        PurePath(str(data.get("continued_trajectory_ref") or "")).name if parent_id is None else "",
        totals,
        [request for part in inside for request in part.imported.requests],
    )
    yield from inside
    for index, child in enumerate(listed(where, data, "subagent_trajectories", dict)):
        yield from _parts(file, f"{where}: subagent_trajectories[{index}]", child, name)


def _side(where: str, step: Object) -> str:
    """Return the sub-agent whose step stands between the main agent's; empty: the step is the main agent's."""
    extra = inner(where, step, "extra")
    return str(extra.get("agent_id") or "sidechain") if extra.get("is_sidechain") else ""


def _on_its_own(step: Object) -> Object:
    return {**step, "extra": {**step["extra"], "is_sidechain": False}}


def _continued(parts: Sequence[Part], assumptions: Assumptions) -> Iterator[Part]:
    """Yield the parts, those that go on in other files as one."""
    by_file = {part.file: part for part in parts if part.imported.program.parent_id is None}
    following = {part.file.with_name(part.goes_on) for part in parts if part.goes_on}
    for part in parts:
        if part.imported.program.parent_id is not None or part.file not in following:
            yield _whole(part, by_file, assumptions)


def _whole(part: Part, by_file: Mapping[PurePath, Part], assumptions: Assumptions) -> Part:
    seen = {part.file}
    while part.goes_on:
        after = by_file.get(part.file.with_name(part.goes_on))
        if after is None or after.file in seen:
            assumptions.assume(
                "continuation", "its file is missing: left out", example=part.imported.program.program_id
            )
            return replace(part, totals={}, goes_on="")
        seen.add(after.file)
        requests = [*part.imported.requests, *after.imported.requests]
        shift = len(part.imported.requests)
        children = {name: shift - 1 if turn is None else turn + shift for name, turn in after.children.items()}
        part = Part(
            replace(part.imported, requests=requests),
            {**part.children, **children},
            part.names | after.names,
            after.file,
            after.goes_on,
            after.totals,
            [*part.within, *after.within],
        )
    return part


def _differing(part: Part) -> list[Assumption]:
    """Return the sums of the source that are neither those of the requests, nor with those of sub-agents between
    them."""
    name, requests = part.imported.program.program_id, part.imported.requests
    alone = list(differing_totals(name, part.totals, requests))
    return alone if alone and list(differing_totals(name, part.totals, [*requests, *part.within])) else []


def _references(where: str, step: Object) -> Iterator[str]:
    """Yield what the step calls the trajectories of sub-agents: an id, or the name of a file."""
    for result in listed(where, inner(where, step, "observation"), "results", dict):
        for reference in listed(where, result, "subagent_trajectory_ref", dict):
            named = reference.get("trajectory_id") or reference.get("trajectory_path") or reference.get("session_id")
            yield PurePath(str(named)).name


def _opening(steps: Sequence[Object]) -> tuple[str, ...]:
    """Return the messages before the model's first answer."""
    asked = takewhile(lambda step: step.get("source") != "agent", steps)
    return tuple(str(step.get("message") or "") for step in asked)


def _requests(file: Source, name: str, steps: Sequence[Object]) -> Iterator[tuple[RequestUsage | None, Sequence[str]]]:
    """Yield a request for each answer, with the sub-agents that it started; None for those before the first answer.

    Some harnesses write a step for each part of an answer, each with the usage of the whole answer, or only the first
    with it.
    """
    latest: RequestUsage | None = None
    started: list[str] = []
    observed = True
    for index, step in enumerate(steps):
        where = f"{name}: steps[{index}]"
        if step.get("source") != "agent" or step.get("is_copied_context"):
            observed = observed or step.get("source") != "agent"
            started += _references(where, step)
            continue
        metrics = inner(where, step, "metrics")
        request = usage_of(where, {**inner(where, metrics, "extra"), **metrics}, _calls(where, step))
        request = replace(request, estimated={TOOLS: WAITS})
        if latest is not None and not observed and _same_answer(latest, request):
            file.assume("step", ONE_ANSWER)
            output, calls = max(latest.output_tokens, request.output_tokens), latest.tool_calls + request.tool_calls
            latest = replace(latest, output_tokens=output, tool_calls=calls)
        else:
            if latest is not None or started:
                yield latest, started
            latest, started = request, []
        started += _references(where, step)
        observed = bool(step.get("observation"))
    if latest is not None or started:
        yield latest, started


def _same_answer(before: RequestUsage, after: RequestUsage) -> bool:
    lengths = (before.prompt_tokens, before.cached_tokens) == (after.prompt_tokens, after.cached_tokens)
    return lengths or not after.prompt_tokens


def _calls(where: str, step: Object) -> Iterator[ToolCall]:
    asked = listed(where, step, "tool_calls", dict)
    arguments = [call.get("arguments") for call in asked]
    typed: list[Object] = [argument for argument in arguments if _is_typed(argument)]
    if not asked:
        typed = list(typed_commands(str(step.get("message") or "")))
    if typed:
        text = keystrokes(typed)
        waits = [min(float(number(where, command, "duration", 0)), MAX_WAIT_S) for command in typed]
        yield ToolCall(first_program(text) or SHELL, sum(waits), digest=digest(text))
    for call, argument in zip(asked, arguments, strict=True):
        if not _is_typed(argument):
            name = str(call.get("function_name") or UNKNOWN)
            yield ToolCall(name, digest=digest(json.dumps(argument, sort_keys=True)))


def _is_typed(arguments: Any) -> TypeGuard[Object]:
    return isinstance(arguments, dict) and "keystrokes" in arguments


def keystrokes(commands: Sequence[Object]) -> str:
    """Return the keystrokes of the commands, one line per command."""
    return "".join(f"{command['keystrokes']}\n" for command in commands)


def typed_commands(text: str) -> Iterator[Object]:
    """Yield the commands of an answer ``{"commands": [{"keystrokes": ...}]}``, which may stand between other text."""
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1], strict=False)
    except (ValueError, RecursionError):
        return
    commands = answer.get("commands") if isinstance(answer, dict) else None
    for command in commands if isinstance(commands, list) else ():
        if isinstance(command, dict) and isinstance(command.get("keystrokes"), str):
            yield command


IMPORTERS = (
    Importer(
        "terminal-bench",
        read_terminal_bench,
        (
            Signs(
                {"schema_version": str, "steps": list, "steps.source": str},
                more=("agent", "session_id", "final_metrics"),
            ),
        ),
        join_terminal_bench,
    ),
)
