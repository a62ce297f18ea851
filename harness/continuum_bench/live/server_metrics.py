"""Records the server's ``/metrics`` beside a live run, every few seconds."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from continuum_bench.live.endpoint import metrics_page

SERVER_METRICS = "server_metrics.jsonl"
EVERY_S = 5.0
SAMPLE = re.compile(r"^(\w+:\w+(?<!_bucket)(?<!_created)(?<!_info))(?:{.*})? (\d\S*)", re.MULTILINE)
"""A gauge, a counter, or the sum or count of a histogram, of an engine or of Continuum (``vllm:...``,
``continuum:...``)."""


def samples(page: str) -> dict[str, float]:
    """Return the numbers of a ``/metrics`` page by name, summed over labels (engines, reasons)."""
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(page):
        sums[name] = sums.get(name, 0.0) + float(value)
    return sums


@contextmanager
def server_metrics(root: str, folder: Path, now_s: Callable[[], float]) -> Iterator[None]:
    """Append a line to the run's file every ``EVERY_S`` seconds inside the block: ``t_s`` (seconds on the run's clock)
    and the numbers. Without numbers, or without room on the disk, no line is written."""
    ended = threading.Event()

    def follow() -> None:
        while True:
            if numbers := samples(metrics_page(root)):
                with suppress(OSError), (folder / SERVER_METRICS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"t_s": round(now_s(), 3), **numbers}) + "\n")
            if ended.wait(EVERY_S):
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
