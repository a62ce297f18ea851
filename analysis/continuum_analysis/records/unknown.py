"""What the records of a run do not say about the cache, as sentences for the reader of a report."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_analysis.records.facts import RunFacts


def cannot_be_known(facts: RunFacts) -> Iterator[str]:
    """The sentences; none for a run with complete records of the scheduler."""
    turns = [turn for program in facts.everyone for turn in program.turns]
    if not any(turn.start_s is not None for turn in turns):
        yield (
            "the client's records alone: queue waits, pins and the causes of hits and misses are not in them. The "
            "server writes them (serve --record DIR), and replay takes them in (--scheduler-records DIR)"
        )
    elif not any(turn.status is not None for turn in turns):
        yield (
            "the preview's format: it does not say which tool a turn called, why a pin ended or why none was set, so "
            "that a miss after an expired pin and one after a pin that was given up look the same"
        )
    if not facts.returns:
        yield (
            "no turn whose cache hit was recorded returned to it. A vLLM server reports hits to its clients with "
            "--enable-prompt-tokens-details"
        )
