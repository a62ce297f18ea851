"""docs/metrics.md, written from the table of metrics: ``python -m continuum_analysis.metrics_page docs/metrics.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from continuum_analysis.metrics import METRICS
from continuum_analysis.records.misses import CAUSES

HEAD = """# Metrics

Written by `python -m continuum_analysis.metrics_page docs/metrics.md` from `METRICS` in
`analysis/continuum_analysis/metrics.py`; do not edit.

Every metric is computed from recorded files alone (`scheduler_timestamps.jsonl`, and `turns.jsonl` and
`scheduler_time.json` where they are there).
A program is finished when each of its turns ended, the last one with an answer, and its client was to send no other.
Only finished programs enter the times; the others stay in the denominators (percentiles of completion times, finished
share, wall time) and are named. Programs of a warm-up or cool-down are load and in no metric. A metric is null (a dash
in tables, an empty cell in CSV) where the files do not hold what it needs. Percentiles interpolate linearly.

| name | unit | what it is |
|---|---|---|
"""

TRIES = """
## Turns that were tried several times

A request that broke and was sent again is one turn. The records say so by the client's `turn_id`, or, where there is
none, by the turn number, which the server gives to every try alike ([rule](server/README.md#turns-and-tries)).
Records of the server and of the client are joined by program and `turn_id` where both have one, else by program and
turn number.

- Arrival is the first try's; finish, prompt, tokens found in cache, output and status are the last one's. So completion
  times hold the failed tries and the time between them.
- Queue waits, and with them the bubble, are those of all tries together: each from its arrival until it was scheduled,
  ended or was sent again. The time in which a failed try ran, and the time between tries, are in no queue wait.
- Preemptions and their waits count in every try.
- A try may find what an earlier one computed. The ideal hit ratio is never less than what was found.
- A pin that an earlier try took over is a pin hit. Where the last try did not find that KV any more, the turn's cause
  is `dropped`.
"""

TAIL = """
## Per policy, in summary.json

Each metric is the mean over seeds; `intervals` holds its 95% interval (Student's t), null with one seed. Of runs behind
different routers each policy is there once for each of them, as `continuum@affinity`. `baseline` names what the ratios
are to: `vllm`, then behind the router that came first.

| name | unit | what it is |
|---|---|---|
| `policy`, `router` | | the two apart; the router null with one replica |
| `ratio_to_vllm` | | the baseline's mean JCT / this policy's: seeds both ran, programs that finished under both |
| `ratio_to_vllm_interval` | | 95% interval, paired by seed (Fieller); null with one seed |
| `ratio_to_vllm_within_one_arrival_sequence` | | one seed only: 95%, programs resampled (paired bootstrap) |
| `ratio_to_vllm_bootstrap_interval` | | several seeds: the same over seeds; too narrow for few |
| `difference_to_vllm_s` | s | the baseline's mean JCT - this policy's, the same programs |
| `difference_to_vllm_interval_s` | s | 95% interval (t on per-seed differences) |
| `effect_size_to_vllm` | | Hedges' g_z: mean paired difference / its deviation over n seeds * (1 - 3 / (4n - 5)) |
| `sooner_than_vllm_share` | | programs that finished sooner than under the baseline, ties half; mean over seeds |
| `sooner_than_vllm_interval` | | its 95% interval (t over seeds) |
| `paired_programs` | | programs the ratio rests on (finished under both), programs that arrived |
| `pins_by_ending` | | pins by what ended them, summed over seeds |
| `errors_by_kind` | | a live run's failed tries and programs stopped at a limit, by kind, summed over seeds |
| `unfinished`, `failed` | | program ids left out of the times |
| `seeds`, `paired_seeds` | | seeds run, seeds the ratio rests on |

The interval of the difference covers 0 exactly when that of the ratio covers 1. With one seed nothing is known about
other arrival sequences; the resampled interval speaks of the one that ran.

How often these intervals see a difference between a policy and itself: [self-check](results/self-check.md).

Two runs are paired only where their manifests agree in workload, engine, hardware and engine options (the tiers of a
`+offload` arm and the router of equal replicas apart), and where their clients sent the same programs at the same
instants; anything else is refused with the field's name.
"""


MISSES = """
## Why a returning turn found its KV, or did not

`continuum-bench analyze DIR --misses`, and in the report. Every turn after its program's first gets one cause, from the
records alone. It is a hit if it found all it could have, to within one block; what it could have found is what a replay
says was there before (`reusable_tokens` of `turns.jsonl`), elsewhere the prompt of the turn before.

| cause | what happened |
|---|---|
"""

EXPORTS = """
`continuum-bench analyze DIR --table turns --format parquet --out turns.parquet` gives the cause of every turn, the
seconds by which an expired pin was too short (`late_s`: arrival - the pin's end) and the tokens computed
again (`lost_tokens`).
Tables: `runs`, `misses`, `programs`, `turns`, `pins`; forms: `csv`, `json`, `latex`, `markdown`, `parquet`.
"""


def page() -> str:
    """The text of docs/metrics.md."""
    rows = [f"| `{m.name}` | {m.unit} | {m.formula.replace('|', chr(92) + '|')} |" for m in METRICS]
    causes = [f"| `{cause}` | {words} |" for cause, words in CAUSES.items()]
    return HEAD + "\n".join(rows) + "\n" + TRIES + TAIL + MISSES + "\n".join(causes) + "\n" + EXPORTS


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
