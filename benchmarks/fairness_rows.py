"""The requests of forty clients that send without a pause, and of eight honest programs beside them.

A row is a function of a client's number and of the number of its round. It returns the requests that the client sends
together; the next round follows when all are answered. Rows differ in ids, tags and prompts, but, except for ``giant``,
not in the number of tokens. ``fairness_bench`` runs the rows in virtual time, ``fairness`` on a server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from continuum_traces.schema import Tags

GPU, KV_BLOCKS, BLOCK = "a100-80gb", 1200, 16
"""The engine has modelled step times and this KV pool: blocks, and tokens of a block."""
CLIENTS, PROGRAMS = 40, 8
CROWD_PROMPT, CROWD_OUTPUT = 900, 32
"""Tokens of a client's request; each request has up to a quarter more or fewer."""
HONEST_PROMPT, HONEST_OUTPUT, HONEST_MORE = 2200, 40, 100
"""Tokens of an honest program: its first prompt, each of its two answers, and the output of its tool."""
TOOL_S = 0.5
CLIENTS_APART_S = 0.01
FIRST_PROGRAM_S, PROGRAMS_APART_S = 3.0, 0.25

HINTS: dict[str, Any] = {
    "kv_ttl_s": 600.0,
    "pred_tool": "ls",
    "pred_tool_s": 1.0,
    "pred_tool_p90_s": 2.0,
    "last_func_call": "ls",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: the token ids of its prompt, the length of its answer, and its ids and tags."""

    prompt: list[int]
    output: int
    tags: Tags
    tool: str | None = None
    """The tool that its answer calls."""
    abort_at: int | None = None
    """The client leaves when the answer has so many tokens."""
    copies: int = 1
    """Answers to generate, as the sampling parameter n: vLLM makes as many requests of it."""


Row = Callable[[int, int], list[Ask]]


def ids(name: str, count: int) -> list[int]:
    """Return arbitrary token ids. Texts with different names share no block; of two texts with one name, the shorter is
    a prefix of the longer."""
    return random.Random(name).choices(range(300, 8000), k=count)


def honest(program: int, turn: int, before: Sequence[int]) -> Ask:
    """Return a turn of an honest program; ``before`` is the prompt and the answer of the first turn."""
    prompt = [*before, *ids(f"tool {program}", HONEST_MORE)] if turn else ids(f"task {program}", HONEST_PROMPT)
    return Ask(prompt, HONEST_OUTPUT, Tags(program_id=f"honest-{program}", is_last_step=bool(turn)))


def _ask(client: int, number: int, tags: Tags) -> list[Ask]:
    """A request whose prompt shares no block with another."""
    name = f"{client} {number}"
    prompt, output = _sizes(name)
    return [Ask(ids(name, prompt), output, tags)]


def _sizes(name: str) -> tuple[int, int]:
    """Tokens of a request's prompt and answer. They vary, because requests of equal size would all end together."""
    chance = random.Random(f"sizes of {name}")
    return round(CROWD_PROMPT * chance.uniform(0.75, 1.25)), round(CROWD_OUTPUT * chance.uniform(0.75, 1.25))


def _fresh(client: int, number: int) -> str:
    return f"crowd-{client}-{number}"


def _user(client: int) -> str:
    return f"user-{client}"


def idle(client: int, number: int) -> list[Ask]:
    return []


def untagged(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags())


def fresh_id(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags(_fresh(client, number)))


def shared_old_id(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags("old"))


def child_of_old(client: int, number: int) -> list[Ask]:
    """The very first request belongs to the old program."""
    tags = Tags(_fresh(client, number), parent_id="old") if client or number else Tags("old")
    return _ask(client, number, tags)


def own_old_id(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags(_user(client)))


def own_old_id_continued(client: int, number: int) -> list[Ask]:
    """Each prompt is the previous one and 16 more tokens."""
    prompt, output = _sizes(f"{client}")
    return [Ask(ids(f"{client}", prompt + 16 * number), output, Tags(_user(client)))]


def untagged_continued(client: int, number: int) -> list[Ask]:
    """As ``own_old_id_continued``, but without an id."""
    return [replace(ask, tags=Tags()) for ask in own_old_id_continued(client, number)]


def giant(client: int, number: int) -> list[Ask]:
    """One client sends a prompt of 10,000 tokens, which grows from round to round. The others send small prompts."""
    prompt = ids("giant", 10_000 + 16 * number)
    return fresh_id(client, number) if client else [Ask(prompt, CROWD_OUTPUT, Tags(_user(client)))]


def last_step(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags(_fresh(client, number), is_last_step=True))


def chain(client: int, number: int) -> list[Ask]:
    parent = _fresh(client, number - 1) if number else None
    return _ask(client, number, Tags(_fresh(client, number), parent_id=parent))


def one_prompt(client: int, number: int) -> list[Ask]:
    return [Ask(ids("same", CROWD_PROMPT), CROWD_OUTPUT, Tags("old"))]


def fresh_id_hints(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags(_fresh(client, number), **HINTS))


def own_old_id_hints(client: int, number: int) -> list[Ask]:
    return _ask(client, number, Tags(_user(client), **HINTS))


def burst(client: int, number: int) -> list[Ask]:
    """Every second client sends two requests at once with different prompts; the others send nothing."""
    tags = Tags(_fresh(client, number))
    return [] if client % 2 else [*_ask(client, number, tags), *_ask(client + CLIENTS, number, tags)]


def betray(client: int, number: int) -> list[Ask]:
    """Programs of four quick turns, each of which asks for a hold of ten minutes; then the client uses a new id."""
    program, turn = divmod(number, 4)
    prompt, output = _sizes(f"{client} {program}")
    return [Ask(ids(f"{client} {program}", prompt + 16 * turn), output, Tags(_fresh(client, program), kv_ttl_s=600.0))]


def half_prompt(client: int, number: int) -> list[Ask]:
    """An old id per client; each prompt repeats 500 tokens and has 400 new ones."""
    return [Ask(ids(f"{client}", 500) + ids(f"{client} {number}", 400), CROWD_OUTPUT, Tags(_user(client)))]


def invented(seed: int) -> Row:
    """A row drawn at random: each client reuses ids, parents, prompts, hints and last steps in its own way.

    No client continues its own conversation in full, because that is what program order serves first.
    """

    def row(client: int, number: int) -> list[Ask]:
        habit = random.Random(f"{seed} {client}")
        ids_of, prompts_of = habit.choice(("fresh", "old", "user")), habit.choice(("new", "new", "half", "same"))
        child, last, hints = habit.random() < 0.3, habit.choice((None, True, False)), habit.random() < 0.5
        name = {"fresh": _fresh(client, number), "old": "old", "user": _user(client)}[ids_of]
        prompt, output = _sizes(f"{client} {number}")
        text = {
            "new": ids(f"{client} {number}", prompt),
            "half": ids(f"{client}", 500) + ids(f"{client} {number}", 400),
            "same": ids(f"{client} {number % 2}", prompt),
        }[prompts_of]
        hinted = {**HINTS, "kv_ttl_s": habit.choice((1.0, 600.0))} if hints else {}
        parent = habit.choice(("old", _user(client), "honest-0")) if child else None
        return [Ask(text, output, Tags(name, parent_id=parent, is_last_step=last, **hinted))]

    return row


FRESH = "fresh-id"
"""The row with which the other rows are compared."""

ROWS: dict[str, tuple[Row, str]] = {
    "idle": (idle, "nothing"),
    "untagged": (untagged, "untagged requests"),
    "untagged-continued": (untagged_continued, "untagged requests, prompts that continue"),
    FRESH: (fresh_id, "a fresh id for each request"),
    "shared-old-id": (shared_old_id, "one old id, the same for all"),
    "child-of-old": (child_of_old, "fresh ids whose parent is an old program"),
    "own-old-id": (own_old_id, "an old id per client, unrelated prompts"),
    "own-old-id-continued": (own_old_id_continued, "an old id per client, prompts that continue"),
    "giant": (giant, "a fresh id for each request, beside one prompt of 10,000 tokens that continues"),
    "last-step": (last_step, "a fresh id for each request, tagged as its last step"),
    "chain": (chain, "fresh ids, each a child of the id before"),
    "one-prompt": (one_prompt, "one old id, the same prompt each time"),
    "fresh-id-hints": (fresh_id_hints, "a fresh id for each request, with hints"),
    "own-old-id-hints": (own_old_id_hints, "an old id per client, with hints"),
    "burst": (burst, "two requests at once under a fresh id, from half of the clients"),
    "betray": (betray, "four quick turns that ask for long holds, then a fresh id"),
    "half-prompt": (half_prompt, "an old id per client, prompts of which half continues"),
}
"""Rows by name: the function, and a description of what the clients send."""
