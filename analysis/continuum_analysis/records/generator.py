"""The load generator's own records: errors by kind, and how late it sent requests."""

from __future__ import annotations

from collections import Counter

import numpy as np
from continuum_traces.schema import TurnRecord

from continuum_analysis.records.facts import RunFacts

LATE_S = 0.010
"""A warning is given where the 99th percentile of the lateness is above this."""


def client_records(facts: RunFacts) -> list[TurnRecord]:
    """Return the client's record of every turn that was sent, warm-up and cool-down included."""
    return [turn.client for program in facts.machine for turn in program.turns if turn.client is not None]


def errors_by_kind(facts: RunFacts) -> dict[str, int]:
    """Count failed tries of turns, and programs stopped at a limit. A failed try counts even if a retry succeeded."""
    counts: Counter[str] = Counter()
    for record in client_records(facts):
        counts.update(record.failed_tries)
        kind = (record.error or "").partition(":")[0]
        if kind and record.failed_tries[-1:] != (kind,):
            counts[kind] += 1
    return dict(sorted(counts.items()))


def send_lateness_s(facts: RunFacts, percentile: float) -> float | None:
    """Return a percentile of (sent - due) over all turns; None without a client's records, and in virtual time."""
    late = [] if facts.virtual else [record.sent_s - record.due_s for record in client_records(facts)]
    return float(np.percentile(late, percentile)) if late else None


def lateness_warning(facts: RunFacts) -> str | None:
    """Return a warning if the load generator was so late that the metrics show it, else None."""
    late_s = send_lateness_s(facts, 99)
    if late_s is None or late_s <= LATE_S:
        return None
    first = [turn.ttft_s for turn in facts.turns if turn.ttft_s is not None]
    share = f", {late_s / float(np.mean(first)):.1%} of the mean TTFT" if first and np.mean(first) > 0 else ""
    return (
        f"the load generator sent {late_s * 1e3:.0f} ms late at the 99th percentile{share}; times count from the "
        "intended instant and include it"
    )
