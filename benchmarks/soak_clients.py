"""The clients of soak.py: honest agents and hostile clients.

They speak HTTP over raw sockets, so that a client can hang up at any moment: before its request is complete, in the
queue, during the prefill, in the middle of an answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

REQUEST_S = 120.0
"""Seconds that an honest agent waits for an answer before it counts as failed."""
TURNS, FIRST_TOKENS, MORE_TOKENS, OUTPUT_TOKENS, TOOL_S = 4, 600, 150, 24, 0.3
"""Turns of every honest program; equal, so that their times can be compared."""


@dataclass
class Site:
    """The server's address. The server may be down for a while and come back at another port."""

    model: str
    max_tokens: int
    host: str = "127.0.0.1"
    port: int = 0
    lives: int = 0
    """Number of times that the server went down."""
    is_up: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    """If true, no new program is begun."""

    def down(self) -> None:
        if self.is_up.is_set():
            self.lives += 1
            self.is_up.clear()

    def up(self, port: int) -> None:
        self.port = port
        self.is_up.set()


@dataclass
class Seen:
    """Counts of what the clients did, and of the outcomes."""

    acts: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """Answers to hostile requests by class of status, without answers that the death of the server cut off."""
    turns: int = 0
    failures: list[str] = field(default_factory=list)
    """Honest requests that failed while the server should have been up."""
    retries: int = 0
    """Honest requests that were sent again after the kill."""
    programs: int = 0
    """Honest programs that ended."""
    programs_s: list[float] = field(default_factory=list)
    """Seconds of honest programs from the first arrival to the last answer, without programs that were running at the
    kill."""


# ------------------------------------------------------------------------------------------------------ wire


def head_of(site: Site, path: str, length: int, headers: dict[str, str], method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {site.host}", "Content-Type: application/json", "Connection: close"]
    lines += [f"Content-Length: {length}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogatepass")


@asynccontextmanager
async def connection(site: Site) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is aborted at the end, whatever is still being sent."""
    reader, writer = await asyncio.open_connection(site.host, site.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def sent(
    site: Site, path: str, body: bytes, headers: dict[str, str] | None = None
) -> AsyncIterator[asyncio.StreamReader]:
    """Send a whole request; leaving the block hangs up."""
    async with connection(site) as (reader, writer):
        writer.write(head_of(site, path, len(body), headers or {}) + body)
        await writer.drain()
        yield reader


async def ask(site: Site, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request, and return the status and the body of its answer.

    Raises:
        OSError: there was no answer.
    """
    async with sent(site, path, body, headers) as reader:
        answer = await reader.read(-1)
    head, _, rest = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionResetError(f"no answer: {answer[:60]!r}")
    return int(words[1]), rest


def tokens(count: int, chance: random.Random) -> list[int]:
    """Arbitrary token ids."""
    return chance.choices(range(300, 8000), k=count)


def completion(site: Site, prompt: list[int], output: int, xargs: Any = None, **fields: Any) -> bytes:
    body = {"model": site.model, "prompt": prompt, "max_tokens": output, "ignore_eos": True, **fields}
    return json.dumps(body if xargs is None else {**body, "vllm_xargs": xargs}).encode()


# ---------------------------------------------------------------------------------------------- honest agents


class Agent:
    """Runs programs one after the other. Each is a conversation that grows; a turn that the kill interrupts is sent
    again."""

    def __init__(self, site: Site, seen: Seen, name: str, seed: int) -> None:
        self.site, self.seen, self.name, self.chance = site, seen, name, random.Random(seed)

    async def run(self) -> None:
        number = 0
        while not self.site.is_over:
            await self.site.is_up.wait()
            await self.program(f"honest-{self.name}-{number}")
            number += 1

    async def program(self, program_id: str) -> None:
        clock, lives = asyncio.get_running_loop().time, self.site.lives
        began_s, prompt = clock(), tokens(FIRST_TOKENS, self.chance)
        for index in range(TURNS):
            answer = await self.turn(program_id, prompt, is_last=index == TURNS - 1)
            if answer is None:
                return
            prompt += [*answer, *tokens(MORE_TOKENS, self.chance)]
            if index < TURNS - 1:
                await asyncio.sleep(TOOL_S * self.chance.uniform(0.5, 1.5))
        self.seen.programs += 1
        if lives == self.site.lives:
            self.seen.programs_s.append(clock() - began_s)

    async def turn(self, program_id: str, prompt: list[int], is_last: bool) -> list[int] | None:
        """Play a turn, and return the tokens of the answer; None if the request failed while the server was up."""
        xargs = {"program_id": program_id, "is_last_step": int(is_last), "last_func_call": "ls"}
        body = completion(self.site, prompt, OUTPUT_TOKENS, xargs, return_token_ids=True)
        while True:
            await self.site.is_up.wait()
            lives = self.site.lives
            self.seen.turns += 1
            try:
                status, answer = await asyncio.wait_for(ask(self.site, "/v1/completions", body), REQUEST_S)
                token_ids = list(json.loads(answer)["choices"][0]["token_ids"])
                if status == 200 and len(token_ids) == OUTPUT_TOKENS:
                    return token_ids
                reason = f"{status}, {len(token_ids)} tokens of {OUTPUT_TOKENS}"
            except (OSError, asyncio.TimeoutError, ValueError, KeyError, TypeError) as error:
                reason = f"{type(error).__name__}: {error}"
            if lives == self.site.lives:
                self.seen.failures.append(f"{program_id}: {reason[:200]}")
                return None
            self.seen.retries += 1


# -------------------------------------------------------------------------------------------- hostile clients


HOSTILE_IDS: tuple[Any, ...] = (
    *("", " ", "\0", "\n", "a" * 256, "a" * 257, "x" * 1_000_000, "../../etc/passwd", "%2e%2e", "💥" * 64, "\ud800"),
    *(0, -1, 2**63, 10**300, 1.5, 1e308, True, False, None, [], ["a", "b"], {}, {"program_id": "p"}, [[["a"]]]),
)
HOSTILE_SECONDS: tuple[Any, ...] = (
    *(-1, 0, 1e-320, 1e308, 10**400, "NaN", "inf", "", "x" * 10_000, True, None, [], {}, 86_401),
)
HOSTILE_TAGS = (
    *("is_last_step", "pred_tool", "pred_tool_s", "pred_tool_p90_s", "last_func_call", "last_tool_duration_s"),
    *("this_func_call", "kv_ttl_s", "parent_id", "turn_id"),
)
HOSTILE_HEADERS = ("X-Session-ID", "X-Dynamo-Session-ID", "X-Dynamo-Session-Final", "X-Request-Id", "X-Turn-ID")
STALLED = """
import http.client, sys
client = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=120)
client.request("POST", "/v1/completions", sys.stdin.buffer.read(), {"Content-Type": "application/json"})
answer = client.getresponse()
print(answer.status, answer.read(1), flush=True)
answer.read()
"""


class Hostile:
    """Runs one hostile act after the other, drawn at random."""

    def __init__(self, site: Site, seen: Seen, name: str, seed: int) -> None:
        self.site, self.seen, self.name, self.chance = site, seen, name, random.Random(seed)
        self.ids: list[str] = []
        """Program ids that this client has used: ended, released, aborted."""
        self.number = 0

    async def run(self) -> None:
        while not self.site.is_over:
            await self.site.is_up.wait()
            act = self.chance.choice(list(ACTS))
            self.seen.acts[act] += 1
            with suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(ACTS[act](self), REQUEST_S)
            await asyncio.sleep(self.chance.uniform(0.0, 0.2))

    def fresh(self) -> str:
        self.number += 1
        name = f"hostile-{self.name}-{self.number}"
        self.ids = [*self.ids[-99:], name]
        return name

    def old(self) -> str:
        """Return a used id of this client or of an honest agent; its program may have ended or not."""
        number = self.chance.randrange(20)
        return self.chance.choice([*self.ids, self.fresh(), f"honest-{number % 6}-{number}"])

    def body(self, prompt: int, output: int, xargs: Any = None, **fields: Any) -> bytes:
        return completion(self.site, tokens(prompt, self.chance), output, xargs, **fields)

    async def ask(self, body: bytes, headers: dict[str, str] | None = None, path: str = "/v1/completions") -> None:
        """Send a request, and count the status of its answer if the server was up all the time."""
        lives, was_up = self.site.lives, self.site.is_up.is_set()
        try:
            status, _ = await ask(self.site, path, body, headers)
        except OSError:
            status = 0
        if was_up and lives == self.site.lives:
            self.seen.answers[f"{status // 100}xx" if status else "none"] += 1

    # ------------------------------------------------------------------------------------ going away

    async def half_a_body(self) -> None:
        body = self.body(500, 8, {"program_id": self.fresh()})
        async with connection(self.site) as (_, writer):
            writer.write(head_of(self.site, "/v1/completions", len(body), {}) + body[: len(body) // 2])
            await writer.drain()

    async def gone_in_prefill(self) -> None:
        body = self.body(self.site.max_tokens * 3 // 4, 8, {"program_id": self.fresh(), "kv_ttl_s": 60})
        async with sent(self.site, "/v1/completions", body):
            await asyncio.sleep(self.chance.uniform(0.0, 0.15))

    async def gone_in_decode(self) -> None:
        body = self.body(self.chance.choice((50, 2000)), 3000, {"program_id": self.old(), "kv_ttl_s": 60}, stream=True)
        async with sent(self.site, "/v1/completions", body) as reader:
            for _ in range(self.chance.randrange(1, 20)):
                await reader.readline()

    async def gone_in_the_queue(self) -> None:
        """Send more requests at once than fit into the KV pool; all hang up when the first answer begins."""

        async def one(reader_of: Any) -> None:
            async with reader_of as reader:
                await reader.read(1)

        size = self.site.max_tokens // 2
        bodies = [self.body(size, 50, {"program_id": self.fresh()}, stream=True) for _ in range(6)]
        asking = [asyncio.ensure_future(one(sent(self.site, "/v1/completions", body))) for body in bodies]
        try:
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED, timeout=20.0)
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def stopped_process(self) -> None:
        """Let a client stop reading in the middle of an answer, and then continue or die."""
        body = self.body(100, 1500, {"program_id": self.fresh(), "kv_ttl_s": 60}, stream=True)
        command = [sys.executable, "-c", STALLED, self.site.host, str(self.site.port)]
        pipe, silent = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        client = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=silent)
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(body)
            client.stdin.close()
            await client.stdout.readline()
            with suppress(ProcessLookupError):
                client.send_signal(signal.SIGSTOP)
                await asyncio.sleep(self.chance.uniform(1.0, 4.0))
                client.send_signal(signal.SIGCONT)
            if self.chance.random() < 0.5:
                await asyncio.wait_for(client.wait(), 30.0)
        finally:
            with suppress(ProcessLookupError):
                client.kill()
            await client.wait()

    # --------------------------------------------------------------------------------- what they say

    async def stop_string(self) -> None:
        stops = self.chance.choice((["e"], [" ", "a"], ["the", "\n"]))
        await self.ask(self.body(300, 500, {"program_id": self.fresh()}, stop=stops))

    async def hostile_id(self) -> None:
        value = self.chance.choice(HOSTILE_IDS)
        place = self.chance.choice(("program_id", "job_id", "session_id", "header", "field"))
        if place == "header":
            value = str(value).replace("\r", "").replace("\n", "")[:6000]
            await self.ask(self.body(50, 4), {self.chance.choice(HOSTILE_HEADERS): value})
        elif place == "field":
            await self.ask(self.body(50, 4, **{self.chance.choice(("program_id", "job_id", "session_id")): value}))
        else:
            await self.ask(self.body(50, 4, {place: value}))

    async def hostile_tags(self) -> None:
        values = (*HOSTILE_IDS, *HOSTILE_SECONDS)
        chosen = self.chance.sample(HOSTILE_TAGS, k=self.chance.randrange(1, 6))
        tags: Any = {name: self.chance.choice(values) for name in chosen}
        whole = self.chance.choice((tags, tags, {**tags, "program_id": self.fresh()}, [tags], "text", 5))
        await self.ask(self.body(50, 4, whole))

    async def old_id(self) -> None:
        xargs = {"program_id": self.old(), "is_last_step": self.chance.randrange(2), "kv_ttl_s": 86_400}
        await self.ask(self.body(self.chance.choice((20, 3000)), 16, xargs))

    async def parents(self) -> None:
        """Name parents: a program that is its own parent, a circle, a long chain, an honest agent as parent."""
        one, two = self.fresh(), self.fresh()
        for child, parent in ((one, one), (one, two), (two, one), (self.fresh(), self.old()), (two, "honest-0-0")):
            await self.ask(self.body(50, 4, {"program_id": child, "parent_id": parent}))

    async def twins(self) -> None:
        """Send several requests of one program at once; one of them claims to be the last."""
        name = self.fresh()
        xargs = [{"program_id": name, "is_last_step": int(number == 1)} for number in range(4)]
        headers = {"X-Request-Id": f"same-{name}"}
        await asyncio.gather(*(self.ask(self.body(400, 20, each), headers) for each in xargs))

    async def release(self) -> None:
        name = self.chance.choice((self.old(), "nobody", "a%2Fb%00", "%F0%9F%92%A5", "x" * 2000))
        await self.ask(b"", path=f"/continuum/programs/{name}/release")

    async def hog(self) -> None:
        """Send a large context with a TTL of a day, and never return."""
        await self.ask(self.body(self.site.max_tokens // 3, 200, {"program_id": self.fresh(), "kv_ttl_s": 86_400}))


ACTS: dict[str, Callable[[Hostile], Awaitable[None]]] = {
    "half a body": Hostile.half_a_body,
    "gone in prefill": Hostile.gone_in_prefill,
    "gone in decode": Hostile.gone_in_decode,
    "gone in the queue": Hostile.gone_in_the_queue,
    "client stopped (SIGSTOP)": Hostile.stopped_process,
    "stop string": Hostile.stop_string,
    "hostile id": Hostile.hostile_id,
    "hostile tags": Hostile.hostile_tags,
    "old id": Hostile.old_id,
    "hostile parents": Hostile.parents,
    "requests of one program at once": Hostile.twins,
    "release": Hostile.release,
    "hold for a day": Hostile.hog,
}
