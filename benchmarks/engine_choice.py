"""Measures the processor time that the choice of an engine adds to a request (``vllm_plugin/ranks.py``).

    python benchmarks/engine_choice.py

Each number is the median of 40 requests to a client of four engines that answer at once, less the same without the
choice. Processor time hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

from commands import show, tabular
from continuum_server.vllm_plugin.ranks import place_programs


class Engines:
    """A client of four engines that answer at once."""

    engine_core = SimpleNamespace(core_engines=[*range(4)], client_count=1)

    async def generate(self, prompt: object, sampling_params: object, **options: object) -> AsyncIterator[None]:
        yield


async def request_us(client: Engines, tokens: int, with_id: bool) -> float:
    """Return the median processor time of a request in microseconds."""
    chance, spent_us = random.Random(1), list[float]()
    for number in range(40):
        prompt = {"prompt_token_ids": chance.choices(range(30_000), k=tokens)}
        sampling = SimpleNamespace(extra_args={"program_id": f"p{number % 10}"} if with_id else {})
        began_s = time.thread_time()
        async for _ in client.generate(prompt, sampling):
            pass
        spent_us.append(1e6 * (time.thread_time() - began_s))
    return statistics.median(spent_us)


@tabular("prompt", "with an id, us", "without, us")
def lines() -> Iterator[list[str]]:
    for tokens in (1000, 100_000):
        cells = [f"{tokens:,} tokens"]
        for with_id in (True, False):
            placed, plain = Engines(), Engines()
            place_programs(placed, time.thread_time)
            added_us = asyncio.run(request_us(placed, tokens, with_id)) - asyncio.run(
                request_us(plain, tokens, with_id)
            )
            cells.append(f"{added_us:.3g}")
        yield cells


if __name__ == "__main__":
    show(lines())
