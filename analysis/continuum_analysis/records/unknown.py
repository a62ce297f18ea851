"""Sentences for the reader of a report about what was still going on, and what the records of a run do not say."""

from __future__ import annotations

from collections.abc import Iterator

from continuum_traces.names import counted

from continuum_analysis.records.facts import RunFacts


def who_waits(facts: RunFacts) -> str | None:
    """Return a sentence about the turns that had no first token when the run ended; None if there were none."""
    if not facts.waiting:
        return None
    waits_s = [turn.left_in_queue_s if turn.left_s is None else turn.left_s for turn in facts.waiting]
    longest_s = max(wait_s for wait_s in waits_s if wait_s is not None)
    going = sum(program.state == "unfinished" for program in facts.machine)
    return (
        f"{len(facts.waiting)} of {counted(going, 'unfinished program')} waited for a first token when the run ended, "
        f"the longest for {longest_s:.1f} s; in times their waits so far count, which are lower bounds"
    )


def cannot_be_known(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield what the records do not say, and how to record it; nothing for complete records of the scheduler."""
    turns = [turn for program in facts.everyone for turn in program.turns]
    if not any(turn.start_s is not None for turn in turns):
        yield (
            "only the client's records are here, which contain no queue waits, pins or causes of hits and misses",
            "the server writes these (serve --record DIR), and replay adds them to the run (--scheduler-records DIR)",
        )
    elif not any(turn.status is not None for turn in turns):
        yield (
            "the records are in the preview's format, which does not say which tool a turn called, why a pin ended or "
            "why a turn was not pinned; a miss after an expired pin looks the same as a miss after a pin given up",
            "",
        )
    if not facts.returns:
        yield (
            "no returning turn has a recorded number of cached tokens",
            "a vLLM server reports it to its clients with --enable-prompt-tokens-details",
        )
