"""Sentences for the reader of a report about what the records of a run do not say about the cache."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_analysis.records.facts import RunFacts


def cannot_be_known(facts: RunFacts) -> Iterator[str]:
    """Yield the sentences; a run with complete records of the scheduler has none."""
    turns = [turn for program in facts.everyone for turn in program.turns]
    if not any(turn.start_s is not None for turn in turns):
        yield (
            "only the client's records are here, which contain no queue waits, pins or causes of hits and misses. The "
            "server writes these (serve --record DIR), and replay adds them to the run (--scheduler-records DIR)"
        )
    elif not any(turn.status is not None for turn in turns):
        yield (
            "the records are in the preview's format, which does not say which tool a turn called, why a pin ended or "
            "why a turn was not pinned; a miss after an expired pin looks the same as a miss after a pin given up"
        )
    if not facts.returns:
        yield (
            "no returning turn has a recorded number of cached tokens. A vLLM server reports it to its clients with "
            "--enable-prompt-tokens-details"
        )
