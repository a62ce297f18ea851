"""Measures how long honest programs take beside clients that send misleading tags or ids.

    python benchmarks/fairness.py [--policy working-set] [--rows fresh-id,own-old-id] [--limit-s 15] [--virtual]

Forty clients send one request after the other. Beside them arrive eight honest programs of two turns. All use one
emulated server: vLLM over HTTP, which sleeps for an A100's modelled step times and has 1,200 KV blocks. ``--virtual``
runs the same on vLLM's scheduler in virtual time. The rows (``fairness_rows.py``) differ in the ids and tags of the
forty clients. One server runs all rows in turn, with other ids and prompts in each row; its policy keeps what it
learned in earlier rows.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.server_command import model_name
from continuum_server.server_config import ServerConfig
from continuum_traces.schema import Tags
from continuum_traces.wire import tags_to_xargs
from fairness_rows import (
    BLOCK,
    CLIENTS,
    CLIENTS_APART_S,
    FIRST_PROGRAM_S,
    GPU,
    KV_BLOCKS,
    PROGRAMS,
    PROGRAMS_APART_S,
    ROWS,
    TOOL_S,
    Ask,
    Row,
    honest,
)

clock = time.perf_counter  # noqa: TID251
Player = Callable[[str], list[float]]
"""Runs the row with that name. Returns the seconds of each honest program that ended within the limit."""


class OnServer:
    """Runs one row on a running server. ``mark`` makes its ids and prompts different from those of other rows."""

    def __init__(self, http: httpx.AsyncClient, model: str, mark: int) -> None:
        self._http, self._model, self._mark = http, model, mark
        self.times_s: list[float] = []

    async def play(self, row: Row, limit_s: float) -> list[float]:
        crowd = [asyncio.create_task(self._client(row, client)) for client in range(CLIENTS)]
        programs = [asyncio.create_task(self._program(program)) for program in range(PROGRAMS)]
        await asyncio.wait([*programs], timeout=FIRST_PROGRAM_S + limit_s)
        for task in (*crowd, *programs):
            task.cancel()
        ended = await asyncio.gather(*crowd, *programs, return_exceptions=True)
        for fault in ended:
            if isinstance(fault, Exception):
                raise fault
        await self._until_idle()
        return self.times_s

    async def _client(self, row: Row, client: int) -> None:
        await asyncio.sleep(client * CLIENTS_APART_S)
        number = 0
        while asks := row(client, number):
            await asyncio.gather(*map(self._send, asks))
            number += 1

    async def _program(self, program: int) -> None:
        await asyncio.sleep(FIRST_PROGRAM_S + program * PROGRAMS_APART_S)
        since_s, first = clock(), honest(program, 0, ())
        reply = await self._send(first)
        await asyncio.sleep(TOOL_S)
        await self._send(honest(program, 1, [*first.prompt, *reply]))
        self.times_s.append(clock() - since_s)

    async def _send(self, ask: Ask) -> list[int]:
        answer = await self._http.post(
            "/v1/completions",
            json={
                "model": self._model,
                "prompt": [300 + self._mark] * BLOCK + ask.prompt[BLOCK:],
                "max_tokens": ask.output,
                "ignore_eos": True,
                "return_token_ids": True,
                "vllm_xargs": tags_to_xargs(self._marked(ask.tags)),
            },
        )
        answer.raise_for_status()
        return list(answer.json()["choices"][0]["token_ids"])

    def _marked(self, tags: Tags) -> Tags:
        program, parent = (name and f"{self._mark}-{name}" for name in (tags.program_id, tags.parent_id))
        return replace(tags, program_id=program, parent_id=parent)

    async def _until_idle(self) -> None:
        while True:
            state = (await self._http.get("/continuum/state")).json()["engines"][0]
            if state["running"] == state["waiting"] == 0:
                return
            await asyncio.sleep(0.1)


def on_server(server: Server, limit_s: float) -> Player:
    async def play(name: str) -> list[float]:
        limits = httpx.Limits(max_connections=None)
        headers = {"Authorization": "Bearer EMPTY"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=None, limits=limits) as http:
            mark = list(ROWS).index(name)
            return await OnServer(http, model_name(server.config), mark).play(ROWS[name][0], limit_s)

    return lambda name: asyncio.run(play(name))


def in_virtual_time(policy: str, limit_s: float) -> Player:
    from fairness_bench import honest_times_s  # noqa: PLC0415 - vLLM, which takes seconds

    return lambda name: honest_times_s(ROWS[name][0], policy, limit_s=limit_s)


def table(names: list[str], play: Player, limit_s: float) -> Iterator[str]:
    yield "| row | the other 40 clients send | honest programs over | mean, s | longest, s |"
    yield "|---|---|---|---|---|"
    for name in names:
        times_s = play(name)
        over = f"{len(times_s)} of {PROGRAMS}" + (f" in {limit_s:g} s" if len(times_s) < PROGRAMS else "")
        seconds = f"{mean(times_s):.1f} | {max(times_s):.1f}" if times_s else "- | -"
        yield f"| `{name}` | {ROWS[name][1]} | {over} | {seconds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="working-set")
    parser.add_argument("--rows", default=",".join(ROWS), help="names of rows, separated by commas; default: all")
    parser.add_argument("--limit-s", type=float, default=15.0, help="seconds after the first honest program arrived")
    parser.add_argument("--virtual", action="store_true", help="run in virtual time, without a server")
    options = parser.parse_args()
    names = options.rows.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"--rows {unknown[0]}: there are {', '.join(ROWS)}")
    if options.virtual:
        show(table(names, in_virtual_time(options.policy, options.limit_s), options.limit_s))
        return
    config: dict[str, Any] = {"policy": options.policy, "port": 0, "kv_blocks": KV_BLOCKS, "block_size": BLOCK}
    longest = (KV_BLOCKS - 1) * BLOCK
    emulated = EmulatedSettings(gpu=GPU)
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(ServerConfig(**config, max_model_len=longest, emulated=emulated), Path(folder) / "server.log") as server,
    ):
        show(table(names, on_server(server, options.limit_s), options.limit_s))


def show(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
