"""The output of a live run at its end."""

from __future__ import annotations

from continuum_analysis.compare.summary import ArmSummary
from continuum_traces.names import counted

from continuum_bench.live.load_settings import LoadCounters
from continuum_bench.show import print_notice


def client_side(arm: ArmSummary) -> str:
    """Return one line with the latencies that the clients measured."""
    shown = (("TTFT mean", "ttft_mean_s"), ("P95", "ttft_p95_s"), ("TPOT mean", "tpot_mean_s"))
    means = [(label, value) for label, metric in shown if (value := arm.mean(metric)) is not None]
    parts = [f"{label} {value * 1e3:.1f} ms" for label, value in means]
    return "client's side: " + (", ".join(parts) or "no turn was answered")


def report_generator(counters: LoadCounters) -> None:
    if counters.errors:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in counters.errors.items())
        print_notice(f"errors: {kinds}; {counters.retries} tries again, {counters.programs_failed} programs failed")


def length_notes(counters: LoadCounters, steered: bool) -> list[str]:
    """Return what the table of a run must say about the lengths of its prompts and answers.

    Args:
        counters: what the load generator counted.
        steered: whether prompts are text, so that their lengths are never exact.
    """
    notes = []
    if counters.short_answers:
        short, missing = counted(counters.short_answers, "answer"), counters.missing_tokens
        lacking = "1 token" if missing == 1 else f"{missing:,} tokens"
        notes.append(f"{short} ended too early, {lacking} before the length that was asked for: failed tries")
    if counters.uncounted_turns:
        notes.append(f"the server sent no token counts for {counted(counters.uncounted_turns, 'turn')}")
    if counters.unplaced_turns:
        turns = counted(counters.unplaced_turns, "turn")
        notes.append(f"the server does not say how many tokens a chunk has: {turns} without gaps between tokens")
    for name, tokens, planned in (
        ("prompts", counters.prompt_tokens, counters.trace_prompt_tokens),
        ("answers", counters.output_tokens, counters.trace_output_tokens),
    ):
        if planned and (tokens != planned or (steered and name == "prompts")):
            notes.append(f"{name} had {tokens / planned:.3f} of the trace's tokens, by the server's count")
    return notes
