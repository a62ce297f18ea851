"""Keep each program at one engine of vLLM's data parallelism (``--data-parallel-size``), on every HTTP route.

All of vLLM's routes call ``AsyncLLM.generate``, which takes the number of an engine (``data_parallel_rank``). So this
module puts itself in its place in the API server's process, and names the engine of each request's program. A number
that the client sent (``X-data-parallel-rank``) is kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from continuum_traces.wire import tags_from_xargs

from continuum_server.log_once import LogOnce
from continuum_server.policy.programs import name_of
from continuum_server.routers import ROUTERS, Arrival, Door, Sticky
from continuum_server.vllm_plugin.request_tags import read_caller

FORGET_S, MOST_PROGRAMS = 1800.0, 100_000
"""A program is forgotten after ``FORGET_S`` seconds without a turn. If there are more than ``MOST_PROGRAMS``, the one
whose latest turn is the longest ago is forgotten."""
PIECE = 16
"""Prompts without an id are compared in pieces of so many tokens."""


def place_programs(client: Any, clock: Callable[[], float]) -> Ranks | None:
    """Let vLLM's client of several engines (``AsyncLLM``) choose by program; None: it has one engine.

    Args:
        client: changed in place: ``generate`` names an engine.
        clock: returns seconds.
    """
    core = getattr(client, "engine_core", None)
    if len(getattr(core, "core_engines", ())) < 2:
        return None
    ranks, generate = Ranks(core, clock), client.generate

    async def at_its_engine(prompt: Any, sampling_params: Any, *rest: Any, **options: Any) -> AsyncIterator[Any]:
        arrival, rank = None, options.get("data_parallel_rank")
        if rank is None:
            arrival, rank = ranks.choose(prompt, sampling_params, options.get("session_id"))
        try:
            given = {**options, "data_parallel_rank": rank}
            async with aclosing(generate(prompt, sampling_params, *rest, **given)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            if arrival is not None and rank is not None:
                ranks.answered(arrival, rank)

    client.generate = at_its_engine
    return ranks


class Ranks:
    """The engines of this API server's programs.

    If there is one API server, new programs go to the engine with the fewest (``routers.Sticky``). Several
    (``--api-server-count``) know nothing of each other, so the hash of the program's id decides, and vLLM chooses for
    requests without an id.
    """

    def __init__(self, core: Any, clock: Callable[[], float]) -> None:
        self._core, self._clock = core, clock
        self._alone = getattr(core, "client_count", 1) == 1
        self._door = Door(ROUTERS["sticky" if self._alone else "affinity"](), len(core.core_engines))
        self._conversations = UntaggedPrompts()
        self._seen: dict[str, float] = {}
        """When the latest turn of each program came, the longest ago first."""
        self._warn = LogOnce()

    def choose(self, prompt: Any, sampling_params: Any, session_id: str | None) -> tuple[Arrival | None, int | None]:
        """Return a request as the router knows it, and its engine; None: vLLM chooses. Never raises an exception."""
        if len(self._door.replicas) == len(self._core.core_engines):  # else expert parallelism was scaled
            try:
                arrival = self._arrival(prompt, getattr(sampling_params, "extra_args", None) or {}, session_id)
                return arrival, None if arrival is None else self._door.send(arrival)
            except Exception as error:  # noqa: BLE001 - the request is served without us
                self._warn("choose", "no engine was chosen for a request, so vLLM chooses", error=error)
        return None, None

    def answered(self, arrival: Arrival, rank: int) -> None:
        """Note that a request ended, well or not."""
        self._door.answered(rank, arrival)
        self._conversations.busy.discard(arrival.program_id)

    def release(self, program_id: str, namespace: str | None) -> None:
        """Forget a program that its client released."""
        self._door.forget(name_of(program_id, namespace))

    def _arrival(self, prompt: Any, xargs: dict[str, Any], session_id: str | None) -> Arrival | None:
        tags, caller, tokens = tags_from_xargs(xargs, session_id).tags, read_caller(xargs), _tokens(prompt)
        if tags.program_id is not None and (not caller.weak or caller.source.startswith("header:")):
            name = name_of(tags.program_id, caller.namespace)
        elif self._alone:
            name = self._conversations.continued(tokens)
        else:
            return None
        self._saw(name)
        long = Sticky.LONG_PREFIX_TOKENS
        return Arrival(
            name,
            len(tokens),
            shared_prefix_id=str(hash(tuple(tokens[:long]))),
            shared_prefix_tokens=min(long, len(tokens)),
            is_last_step=bool(tags.is_last_step),
            parent_id=None if tags.parent_id is None else name_of(tags.parent_id, caller.namespace),
        )

    def _saw(self, name: str) -> None:
        now_s = self._clock()
        self._seen.pop(name, None)
        self._seen[name] = now_s
        while len(self._seen) > MOST_PROGRAMS or next(iter(self._seen.values())) < now_s - FORGET_S:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._door.forget(oldest)


class UntaggedPrompts:
    """Names the conversations of clients that send no id: a prompt continues the latest one whose prompt it repeats.

    A program recognised here keeps its engine, no more (``policy.recognise`` says why the engine asks again).
    """

    def __init__(self) -> None:
        self.busy: set[str] = set()
        """The conversations with an unanswered request. They are not continued."""
        self._names: dict[Hashable, str] = {}
        """By the hash of each latest prompt without its last piece, since its end may open an answer otherwise than the
        next prompt repeats it."""
        self._count = count()

    def continued(self, tokens: Sequence[int]) -> str:
        pieces = list(_prefixes(tokens))
        earlier = next((self._names[piece] for piece in reversed(pieces) if piece in self._names), None)
        name = f"\0{next(self._count)}" if earlier is None or earlier in self.busy else earlier
        self.busy.add(name)
        for piece in pieces[-2:-1]:
            self._names.pop(piece, None)
            self._names[piece] = name
        if len(self._names) > MOST_PROGRAMS:
            del self._names[next(iter(self._names))]
        return name


def _prefixes(tokens: Sequence[int]) -> Iterator[Hashable]:
    """Yield a hash of the tokens up to the end of each whole piece."""
    so_far: Hashable = None
    for end in range(PIECE, len(tokens) + 1, PIECE):
        so_far = hash((so_far, *tokens[end - PIECE : end]))
        yield so_far


def _tokens(prompt: Any) -> Sequence[int]:
    """Return the prompt's tokens; empty: they are not known yet."""
    tokens = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else getattr(prompt, "prompt_token_ids", None)
    return tokens or ()
