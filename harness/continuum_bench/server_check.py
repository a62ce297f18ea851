"""``continuum-bench doctor --base-url URL``: sends three turns of a program, and says what of it reached the server."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from continuum_server.defaults import NO_SCHEDULER
from continuum_traces.names import counted
from continuum_traces.wire.urls import root_of
from openai import OpenAIError

from continuum_bench.checks import Check, show_checks
from continuum_bench.errors import BenchError
from continuum_bench.live.endpoint import NO_ANSWER, check_url, get_json, probe_server
from continuum_bench.options.serve import DoctorOptions
from continuum_bench.top import EngineState, ProgramRow, States, why_no_state
from continuum_client import OpenAI

OPENING = "This is a long text whose beginning is in the prefix cache when the next turn comes. " * 60
TURNS = 3
HIDDEN = "--server-url http://HOST:PORT asks a server behind a gateway"


def check_server(options: DoctorOptions) -> int:
    """Print what arrived. Returns 1 if the program's id or its KV cache did not.

    Raises:
        BenchError: no server answers, or it refuses the turns.
    """
    assert options.base_url is not None
    key = os.environ.get(options.api_key_env)
    server = probe_server(options.base_url, key, options.served_model, options.wait)
    roots = [root_of(root) for root in options.server_url or [server.root]]
    for root in roots:
        check_url(root)
    asked: Any = options.dialect or "auto"
    client = OpenAI(base_url=server.base_url, api_key=key or "none", dialect=asked, max_retries=0)
    with client.program(f"doctor-{secrets.token_hex(4)}") as program:
        try:
            model = options.served_model or server.models[0]
            prompt_tokens, cached_tokens, kept = _three_turns(
                client, model, program.id, lambda: _kept_tokens(roots, program.id, key)
            )
        except OpenAIError as error:
            raise BenchError(f"--base-url {server.base_url}: {error}") from error
        there = _whole_row(roots, program.id, key)
    engines = [engine for root in roots for engine in _engines_or_none(root, key)]
    first = Check("server", True, server.describe(options.served_model or server.models[0]))
    title = f"{TURNS} turns of {program.id}, sent to {server.base_url}"
    if isinstance(there, str) and NO_SCHEDULER in there:
        off = Check("scheduler", False, NO_SCHEDULER, "nothing of it can be checked", optional=True)
        return show_checks([first, off, _cache(prompt_tokens, cached_tokens)], title, options.json_output)
    checks = [
        first,
        _id(there),
        _cache(prompt_tokens, cached_tokens),
        _hold(kept, cached_tokens, "; ".join(engines[0].kv_groups) if engines else ""),
        _release(there, _row(roots, program.id, key)),
        _histories([row for engine in engines for row in engine.program_list]),
        _hints(engines),
    ]
    return show_checks(checks, title, options.json_output)


def _three_turns(
    client: OpenAI, model: str, name: str, kept_tokens: Callable[[], int | None]
) -> tuple[int, int | None, int | None]:
    """Return the tokens of the last turn's prompt, how many of them were in the cache (None: not said), and how many
    were held before it. After a newcomer's first turn ``working-set`` holds nothing."""
    messages: Any = [{"role": "user", "content": f"{name}: {OPENING}"}]
    for _ in range(TURNS - 1):
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
        messages += [{"role": "assistant", "content": answer.choices[0].message.content or "-"}]
        messages += [{"role": "user", "content": "And now?"}]
    kept = kept_tokens()
    usage = client.chat.completions.create(model=model, messages=messages, max_tokens=16).usage
    details = None if usage is None else usage.prompt_tokens_details
    return 0 if usage is None else usage.prompt_tokens, None if details is None else details.cached_tokens, kept


def _kept_tokens(roots: Sequence[str], program_id: str, key: str | None) -> int | None:
    """Return the tokens that are held for the program, or None after 1.5 s, as a state may be a second old."""
    for _ in range(6):
        engines = chain(*(_engines_or_none(root, key) for root in roots))
        pins = chain(*([*engine.pins, *engine.soft_holds] for engine in engines))
        kept = next((pin.tokens for pin in pins if pin.program_id == program_id), None)
        if kept is not None:
            return kept
        threading.Event().wait(0.25)
    return None


def _hold(kept: int | None, cached_tokens: int | None, groups: str) -> Check:
    """Whether the last turn found what was held before it."""
    if kept is None:
        advice = "as intended under `--policy vllm`; `--policy static-ttl --policy-option static-ttl.ttl_s=60` holds"
        return Check("hold", False, f"none was seen before the last turn. {groups}", advice, optional=True)
    found = min(kept, cached_tokens or 0)
    advice = "" if found else "the next turn goes on where no window or state was kept (docs/decisions.md)"
    return Check("hold", found > 0, f"{kept} tokens held, {found} of them found. {groups}", advice, optional=True)


def _whole_row(roots: Sequence[str], program_id: str, key: str | None) -> ProgramRow | str | None:
    """Return the row once it has all turns, or what is there after 1.5 s, as a state may be a second old."""
    for _ in range(6):
        there = _row(roots, program_id, key)
        if isinstance(there, str) or (there is not None and there.turns == TURNS):
            break
        threading.Event().wait(0.25)
    return there


def _row(roots: Sequence[str], program_id: str, key: str | None) -> ProgramRow | str | None:
    """Return the server's row of the program; None: no server has the program; a text: why that is not known."""
    for root in roots:
        rows = _rows(root, key)
        if isinstance(rows, str):
            return rows
        for row in (row for row in rows if row.program_id == program_id):
            return row
    return None


def _rows(root: str, key: str | None) -> list[ProgramRow] | str:
    """Return a server's programs; a text: why they are not known."""
    engines = _engines(root, key)
    return engines if isinstance(engines, str) else [row for engine in engines for row in engine.program_list]


def _engines(root: str, key: str | None) -> list[EngineState] | str:
    """Return the state of a server's engines; a text: why it is not known."""
    try:
        return get_json(f"{root}/continuum/state", key, States).engines
    except NO_ANSWER as error:
        return f"unknown: {root}: {why_no_state(error)}"


def _engines_or_none(root: str, key: str | None) -> list[EngineState]:
    engines = _engines(root, key)
    return [] if isinstance(engines, str) else engines


def _id(there: ProgramRow | str | None) -> Check:
    if isinstance(there, str):
        return Check("program id", False, there, HIDDEN, optional=True)
    if there is None:
        return Check("program id", False, "did not arrive", "another --dialect (docs/client/dialects.md)")
    way = "body:vllm_xargs" if there.recognised_by == "tag" else there.recognised_by
    whole = there.turns == TURNS
    return Check("program id", whole, f"{way}, turns {there.turns}", "" if whole else "use a router with affinity")


def _cache(prompt_tokens: int, cached_tokens: int | None) -> Check:
    if cached_tokens is None:
        return Check("prefix cache", False, "not reported", "vLLM: --enable-prompt-tokens-details", optional=True)
    hit = f"{cached_tokens} of {prompt_tokens} prompt tokens of turn {TURNS}"
    advice = "" if cached_tokens else "is prefix caching on? Does a router send all turns to one server?"
    return Check("prefix cache", cached_tokens > 0, hit, advice)


def _histories(rows: Sequence[ProgramRow]) -> Check:
    """Check whether the prompts of the server's programs differ early from those of the turns before."""
    left = [(row.left, row) for row in rows if row.left is not None]
    if not left:
        listed = counted(len(rows), "program")
        return Check("histories", True, f"{listed} listed; no prompt differs early from the one before")
    worst, row = max(left, key=lambda pair: pair[0].of - pair[0].token)
    place = f"turn {worst.turn} differs from turn {worst.turn - 1} at token {worst.token:,} of {worst.of:,}"
    said = f"{row.program_id}: {place}, {worst.times} times; {len(left)} of {len(rows)} programs"
    return Check("histories", False, said, "nothing behind it is reused: put what changes at the end", optional=True)


def _hints(engines: Sequence[EngineState]) -> Check:
    """Check whether requests had hints that did nothing."""
    ignored = sum((Counter(engine.hints_ignored) for engine in engines), Counter[str]())
    said = ", ".join(f"{name}: {count} requests" for name, count in ignored.most_common())
    return Check("hints", not ignored, said or "none was ignored", "docs/client/dialects.md", optional=True)


def _release(before: ProgramRow | str | None, after: ProgramRow | str | None) -> Check:
    if not isinstance(before, ProgramRow) or not isinstance(after, ProgramRow):
        return Check("release", False, "unknown", optional=True)
    ended = after.state == "ended"
    advice = "" if ended else "without it the hold ends when its TTL expires; send it to the server itself"
    return Check("release", ended, f"{before.state}, then {after.state}", advice, optional=True)
