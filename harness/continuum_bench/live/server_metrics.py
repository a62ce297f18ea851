"""Records the server's ``/metrics`` beside a live run, every second."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import fsum
from pathlib import Path
from statistics import fmean

from continuum_traces.grouped import grouped
from continuum_traces.records.run_dir import SERVER_METRICS

from continuum_bench.live.endpoint import metrics_page

EVERY_S = 1.0
SAMPLE = re.compile(r"^((?:\w+:|trtllm_)\w+(?<!_bucket)(?<!_created)(?<!_info))(?:{.*})? (\d\S*)", re.MULTILINE)
"""A gauge, a counter, or the sum or count of a histogram, of an engine or of Continuum (``vllm:...``, ``sglang:...``,
``trtllm_...``, ``continuum:...``)."""
SHARES = ("_usage_perc", "_usage", "_utilization", "_rate")
"""How names of shares end."""


def samples(page: str) -> dict[str, float]:
    """Return the numbers of a ``/metrics`` page by name: sums over labels (engines, reasons), of shares the mean."""
    values = grouped((name, float(value)) for name, value in SAMPLE.findall(page))
    return {name: fmean(each) if name.endswith(SHARES) else fsum(each) for name, each in values.items()}


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
