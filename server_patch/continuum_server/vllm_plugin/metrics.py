"""Counters of what the scheduler did, and their Prometheus text. Counting costs a dictionary access per event."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from continuum_traces.schema import SchedulerEvent

TTL_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
DELAY_BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
REASONS = ("hit", "expired", "last", "pressure", "abort", "shutdown")


class Histogram:
    """Counts by upper bound, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def to_json(self) -> dict[str, Any]:
        return {"bounds": self.bounds, "counts": self.counts, "sum": self.sum}


class Metrics:
    """Totals since the engine started. Seconds, tokens."""

    def __init__(self) -> None:
        self.pins = 0
        self.unpins = dict.fromkeys(REASONS, 0)
        self.turns = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.prompt_tokens = 0
        self.hit_tokens = 0
        self.preemptions = 0
        self.ttl_s = Histogram(TTL_BUCKETS_S)
        self.queue_delay_s = Histogram(DELAY_BUCKETS_S)
        self._arrived: dict[str, float] = {}

    def count(self, event: SchedulerEvent) -> None:
        counter = _COUNTERS.get(event.event)
        if counter is not None:
            counter(self, event)

    def to_json(self) -> dict[str, Any]:
        return {
            "pins": self.pins,
            "unpins": self.unpins,
            "turns": self.turns,
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "preemptions": self.preemptions,
            "ttl_s": self.ttl_s.to_json(),
            "queue_delay_s": self.queue_delay_s.to_json(),
        }

    def _arrive(self, event: SchedulerEvent) -> None:
        self._arrived[event.request_id or ""] = event.t

    def _start(self, event: SchedulerEvent) -> None:
        self.prompt_tokens += event.prompt_tokens or 0
        self.hit_tokens += event.hit_tokens or 0
        arrived_s = self._arrived.pop(event.request_id or "", None)
        if arrived_s is not None:
            self.queue_delay_s.add(event.t - arrived_s)

    def _finish(self, event: SchedulerEvent) -> None:
        self._arrived.pop(event.request_id or "", None)
        _increment(self.turns, event.status or "error")

    def _pin(self, event: SchedulerEvent) -> None:
        self.pins += 1
        self.ttl_s.add(event.ttl_s or 0.0)

    def _unpin(self, event: SchedulerEvent) -> None:
        _increment(self.unpins, event.reason or "shutdown")

    def _preempt(self, event: SchedulerEvent) -> None:
        self.preemptions += 1


_COUNTERS = {
    "arrive": Metrics._arrive,
    "start": Metrics._start,
    "finish": Metrics._finish,
    "pin": Metrics._pin,
    "unpin": Metrics._unpin,
    "preempt": Metrics._preempt,
}


def _increment(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def prometheus_text(engines: Sequence[Mapping[str, Any]], absent: str | None = None) -> str:
    """The text exposition of every engine's state (``Online.state``), one label ``engine`` each.

    Args:
        absent: why no engine answered, in one line.
    """
    up = ["# HELP continuum:up Whether the engine answered", "# TYPE continuum:up gauge"]
    up.append(f"continuum:up {int(absent is None)}")
    families = {"": [f"# continuum: {absent}"] if absent is not None else [], "continuum:up": up}
    for number, state in enumerate(engines):
        for name, kind, help_text, samples in _families(state):
            lines = families.setdefault(name, [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"])
            lines += [
                _sample(name + suffix, {"engine": str(number), **labels}, value) for suffix, labels, value in samples
            ]
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


_Samples = list[tuple[str, dict[str, str], float]]


def _families(state: Mapping[str, Any]) -> list[tuple[str, str, str, _Samples]]:
    counters = state["metrics"]
    gauges = {
        "pins_held": ("Pins held now", len(state["pins"])),
        "pinned_tokens": ("KV tokens held by pins now", state["pinned_tokens"]),
        "pinned_blocks": ("KV blocks held by pins now", state["pinned_blocks"]),
        "programs_known": ("Programs remembered", state["programs"]),
        **{name: (gauge["help"], gauge["value"]) for name, gauge in state["gauges"].items()},
    }
    totals = {
        "pins": ("Turns whose KV was pinned", counters["pins"]),
        "prompt_tokens": ("Prompt tokens of scheduled turns", counters["prompt_tokens"]),
        "hit_tokens": ("Prompt tokens found in the prefix cache", counters["hit_tokens"]),
        "preemptions": ("Running requests preempted", counters["preemptions"]),
        "tags_rejected": ("Request tags that could not be read and were ignored", state["tags_rejected"]),
        "plugin_errors": ("Exceptions caught in the plugin's hooks", state["plugin_errors"]),
        "record_events_dropped": ("Events lost to failed writes of the record", state["record_events_dropped"]),
    }
    found: list[tuple[str, str, str, _Samples]] = [
        (f"continuum:{name}", "gauge", text, [("", {}, value)]) for name, (text, value) in gauges.items()
    ]
    found += [(f"continuum:{name}_total", "counter", text, [("", {}, value)]) for name, (text, value) in totals.items()]
    for name, label, text in (
        ("unpins", "reason", "Pins by how they ended"),
        ("turns", "status", "Turns by how they ended"),
    ):
        samples: _Samples = [("", {label: key}, value) for key, value in counters[name].items()]
        found.append((f"continuum:{name}_total", "counter", text, samples))
    found.append(("continuum:ttl_seconds", "histogram", "TTLs chosen for pins", _histogram(counters["ttl_s"])))
    text = "Arrival of a turn to its first scheduling"
    found.append(("continuum:queue_delay_seconds", "histogram", text, _histogram(counters["queue_delay_s"])))
    return found


def _histogram(data: Mapping[str, Any]) -> _Samples:
    samples: _Samples = []
    total = 0
    for bound, count in zip([*data["bounds"], "+Inf"], data["counts"], strict=True):
        total += count
        samples.append(("_bucket", {"le": str(bound)}, total))
    return [*samples, ("_sum", {}, data["sum"]), ("_count", {}, total)]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"
