"""Count the scheduler's events in the engine's process, and write Prometheus metrics in the API server's process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import accumulate
from operator import getitem
from typing import Any, NamedTuple, cast

from continuum_traces.schema import SchedulerEvent
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

TTL_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DELAY_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
REASONS = ("hit", "gone", "expired", "last", "pressure", "abort", "shutdown")
STATUSES = ("stop", "length", "abort", "error")


@dataclass
class Histogram:
    """Counts of values up to each bound and above the previous one. The last count is of values above all bounds."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass
class Metrics:
    """Totals since the engine started."""

    pins: int = 0
    unpins: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    turns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    prompt_tokens: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    left: int = 0
    """Turns whose prompt left that of the turn before."""
    ttl_s: Histogram = field(default_factory=lambda: Histogram(TTL_BUCKETS_S))
    queue_delay_s: Histogram = field(default_factory=lambda: Histogram(DELAY_BUCKETS_S))

    def __post_init__(self) -> None:
        self._arrived: dict[str | None, float] = {}

    def count(self, event: SchedulerEvent) -> None:
        match event.event:
            case "arrive":
                self._arrived[event.request_id] = event.t
                self.left += event.left_at is not None
            case "start":
                self._start(event)
            case "finish":
                self._arrived.pop(event.request_id, None)
                status = event.status or "error"
                self.turns[status] = self.turns.get(status, 0) + 1
            case "pin":
                self.pins += 1
                self.ttl_s.add(event.ttl_s or 0.0)
            case "unpin":
                reason = event.reason or "shutdown"
                self.unpins[reason] = self.unpins.get(reason, 0) + 1
            case "preempt":
                self.preemptions += 1

    def _start(self, event: SchedulerEvent) -> None:
        self.prompt_tokens += event.prompt_tokens or 0
        self.hit_tokens += event.hit_tokens or 0
        arrived_s = self._arrived.pop(event.request_id, None)
        if arrived_s is not None:
            self.queue_delay_s.add(event.t - arrived_s)

    def longest_wait_s(self, now_s: float) -> float:
        """Return the longest wait of the requests that were never scheduled; 0 if there are none."""
        return now_s - next(iter(self._arrived.values()), now_s)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


# ----------------------------------------------------------------------------------------------- Prometheus metrics

State = Mapping[str, Any]
"""An engine's answer to ``Online.state``."""


class Row(NamedTuple):
    """A metric, and where its value stands in an engine's state."""

    kind: type[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]
    name: str
    help: str
    path: tuple[str, ...]
    """Keys in the state. The value is a number, numbers by label, or a ``Histogram``; None: there is none."""
    labels: tuple[str, ...] = ()


GAUGE, COUNTER, HISTOGRAM = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily
ROWS = (
    Row(GAUGE, "pins_held", "Pins held now", ("pins_held",)),
    Row(GAUGE, "pinned_tokens", "KV tokens held by pins now", ("pinned_tokens",)),
    Row(GAUGE, "pinned_blocks", "KV blocks held by pins now", ("pinned_blocks",)),
    Row(GAUGE, "pinned_share", "Share of the KV pool held by pins now", ("pinned_share",)),
    Row(
        GAUGE,
        "evictable_blocks",
        "KV blocks that any request may have now: free, or in one soft hold",
        ("evictable_blocks",),
    ),
    Row(GAUGE, "pool_blocks", "KV blocks of the pool", ("pool_blocks",)),
    Row(
        GAUGE,
        "programs_fitting",
        "Programs at a time that fill the KV pool, by the latest turns",
        ("programs_fitting",),
    ),
    Row(GAUGE, "longest_wait_seconds", "Longest wait for a first scheduling, now", ("longest_wait_s",)),
    Row(GAUGE, "programs_known", "Programs remembered", ("programs",)),
    Row(COUNTER, "pins", "Turns whose KV was pinned", ("metrics", "pins")),
    Row(COUNTER, "prompt_tokens", "Prompt tokens of scheduled turns", ("metrics", "prompt_tokens")),
    Row(COUNTER, "hit_tokens", "Prompt tokens found in the prefix cache", ("metrics", "hit_tokens")),
    Row(COUNTER, "preemptions", "Running requests preempted", ("metrics", "preemptions")),
    Row(COUNTER, "histories_left", "Turns whose prompt differs early from the turn's before", ("metrics", "left")),
    Row(COUNTER, "tags_rejected", "Request tags that could not be read and were ignored", ("tags_rejected",)),
    Row(COUNTER, "hints_ignored", "Requests with a hint that does nothing, by its name", ("hints_ignored",), ("hint",)),
    Row(COUNTER, "plugin_errors", "Exceptions caught in the plugin's hooks", ("plugin_errors",)),
    Row(COUNTER, "record_events_dropped", "Events lost to failed writes of the record", ("record_events_dropped",)),
    Row(COUNTER, "unpins", "Pins by how they ended", ("metrics", "unpins"), ("reason",)),
    Row(COUNTER, "turns", "Turns by how they ended", ("metrics", "turns"), ("status",)),
    Row(HISTOGRAM, "ttl_seconds", "TTLs chosen for pins", ("metrics", "ttl_s")),
    Row(HISTOGRAM, "queue_delay_seconds", "Arrival of a turn to its first scheduling", ("metrics", "queue_delay_s")),
)
KEYS = {
    "share": "Share of the KV pool that an API key's requests and pins hold now",
    "virtual_s": "Engine seconds that an API key was given, divided by its weight",
    "waiting": "Requests of an API key that wait now",
    "longest_wait_s": "Longest wait of a request of an API key, now",
}
"""Numbers of each API key, which exist while requests of several keys were served lately."""


def prometheus_text(engines: Sequence[State], absent: str | None = None) -> str:
    """Return all engines' metrics in Prometheus' text format. The label ``engine`` is the engine's number.

    Args:
        absent: the reason why no engine answered, in one line; None: all engines answered.
    """
    up = GaugeMetricFamily("continuum:up", "Whether the engine answered", float(absent is None))
    comment = "" if absent is None else f"# continuum: {absent}\n"
    families = [family for family in _families(engines) if family.samples]
    return comment + generate_latest(_Families([up, *families])).decode()


class _Families(Collector):
    """A collector of given metric families, for ``generate_latest``."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(engines: Sequence[State]) -> Iterator[Metric]:
    for row in ROWS:
        values = [reduce(getitem, row.path, state) for state in engines]
        yield _family(row.kind(f"continuum:{row.name}", row.help, labels=["engine", *row.labels]), values)
    for name, text in KEYS.items():
        values = [{row["key"]: row[name] for row in state["keys"]} for state in engines]
        yield _family(GAUGE(f"continuum:key_{name.replace('_s', '_seconds')}", text, labels=["engine", "key"]), values)
    of_policies = {name: gauge["help"] for state in engines for name, gauge in state["gauges"].items()}
    for name, text in of_policies.items():
        values = [state["gauges"].get(name, {}).get("value") for state in engines]
        yield _family(GAUGE(f"continuum:{name}", text, labels=["engine"]), values)


def _family(family: Any, values: Sequence[Any]) -> Metric:
    """Return a metric with the samples of all engines."""
    for number, value in enumerate(values):
        engine = str(number)
        if isinstance(value, int | float):
            family.add_metric([engine], value)
        elif isinstance(family, HistogramMetricFamily):
            bounds = [*map(str, value["bounds"]), "+Inf"]
            family.add_metric([engine], list(zip(bounds, accumulate(value["counts"]), strict=True)), value["sum"])
        elif isinstance(value, Mapping):
            for label, count in value.items():
                family.add_metric([engine, label], count)
    return cast(Metric, family)
