"""Runs many programs at once, each through its own proxy. Checks that every answer arrives and is recorded, and that
the server has no pin or request of these programs at the end.

    continuum-bench serve --port 8000 &
    python benchmarks/proxy_many.py --upstream http://127.0.0.1:8000 [--programs 200]

A program makes six streamed turns through its ``continuum_client.proxy.Proxy``. Every third program closes the
connection in the middle of its third answer and sends that turn again; every tenth program ends there. The exit status
is 1 if a turn got lost on the way, or if a request, a pin or a proxy is left at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
from continuum_traces.jsonl import validate
from continuum_traces.run_dir import read_turns

from continuum_client.endpoints import root_of
from continuum_client.proxy import Proxy
from continuum_client.recorder import Recorder
from continuum_client.settings import settings_from

TURNS = 6
HANGS_UP_IN = 2


async def turn(session: aiohttp.ClientSession, url: str, body: dict[str, Any], hang_up: bool) -> None:
    async with session.post(f"{url}/chat/completions", json=body) as answer:
        answer.raise_for_status()
        said = b""
        async for part in answer.content.iter_any():
            said += part
            if hang_up:
                return  # the connection is closed, because the answer has not been read
        if not said.endswith(b"data: [DONE]\n\n"):
            raise SystemExit(f"an answer was cut off: {said[-200:]!r}")


async def program(number: int, upstream: str, model: str, settings: Any, turns: Counter[str]) -> int:
    """Play one program, and return the number of its requests that have not ended at its proxy."""
    name = f"many-{number}"
    async with Proxy(upstream, settings, name) as proxy, aiohttp.ClientSession() as session:
        url = proxy.environment({})["OPENAI_BASE_URL"]
        messages = [{"role": "user", "content": f"Program {number}. " + "Look at the code. " * 40}]
        for count in range(TURNS):
            body = {"model": model, "messages": messages, "stream": True, "max_tokens": 60}
            if count == HANGS_UP_IN and number % 3 == 0:
                await turn(session, url, body, hang_up=True)
                if number % 10 == 0:
                    break
            await turn(session, url, body, hang_up=False)
            turns[name] += 1
            more = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": f"Go on {count}."}]
            messages = [*messages, *more]
        for _ in range(500):
            if not proxy.under_way:
                break
            await asyncio.sleep(0.01)
        return proxy.under_way


async def play(upstream: str, programs: int, folder: str) -> list[str]:
    """Play all programs, and return the faults."""
    recorder = Recorder(folder, source="proxy_many")
    async with aiohttp.ClientSession(root_of(upstream)) as session:
        async with session.get("/v1/models") as answer:
            model = (await answer.json())["data"][0]["id"]
        turns: Counter[str] = Counter()
        settings = [settings_from({"dialect": "vllm", "record": recorder, "implicit": False}) for _ in range(programs)]
        playing = [program(number, upstream, model, mine, turns) for number, mine in enumerate(settings)]
        under_way = await asyncio.gather(*playing)
        await asyncio.sleep(1.0)
        async with session.get("/continuum/state") as answer:
            (state,) = (await answer.json())["engines"]
    running, waiting, pins = state["running"], state["waiting"], state["pins"]
    faults = list(validate(Path(folder) / "trace.jsonl"))
    recorded = Counter(each.program_id.split("/")[0] for each in read_turns(Path(folder)) if each.error is None)
    checks = {
        f"{sum(under_way)} requests are under way at proxies": sum(under_way) == 0,
        f"the server runs {running} requests, {waiting} wait": running == 0 == waiting,
        f"{len(pins)} pins are left": not pins,
        f"{turns.total()} turns were read to their end, {recorded.total()} recorded": recorded >= turns,
        f"{len(faults)} faults in the trace": not faults,
    }
    for text, holds in checks.items():
        sys.stdout.write(f"{'ok  ' if holds else 'FAIL'} {text}\n")
    return [text for text, holds in checks.items() if not holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--programs", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(1 if asyncio.run(play(arguments.upstream, arguments.programs, folder)) else 0)


if __name__ == "__main__":
    main()
