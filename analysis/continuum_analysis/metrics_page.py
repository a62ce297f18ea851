"""docs/metrics.md, written from the table of metrics: ``python -m continuum_analysis.metrics_page docs/metrics.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from continuum_analysis.metrics import METRICS
from continuum_analysis.records.misses import CAUSES
from continuum_analysis.slo import read_slo, slo_metrics

HEAD = """# Metrics

This page is written by `python -m continuum_analysis.metrics_page docs/metrics.md` from `METRICS` in
`analysis/continuum_analysis/metrics.py`; do not edit it.

Every metric is computed from recorded files alone (`scheduler_timestamps.jsonl`, and, if they exist, `turns.jsonl`
and `scheduler_time.json`). A program is finished when each of its turns has ended, its last turn with an answer, and
its client had no further turn to send. Times include finished programs only. The other programs stay in the
denominators (percentiles of completion times, finished share, wall time) and are named. Programs of a warm-up or
cool-down are load, and are in no metric. A metric is null (a dash in tables, an empty cell in CSV) if the files lack
the data for it. Percentiles interpolate linearly.

| name | unit | what it is |
|---|---|---|
"""

TRIES = """
## Turns that were tried several times

A request that broke and was sent again is another try of the same turn. In the records, all tries of a turn have the
client's `turn_id`, or, without a `turn_id`, the turn number, which the server gives to every try of a turn
([rule](server/README.md#turns-and-tries)). Records of the server and of the client are joined by program and
`turn_id` if both have a `turn_id`, else by program and turn number.

- The arrival of a turn is that of its first try. Finish, prompt, tokens found in cache, output and status are those
  of its last try. So completion times include the failed tries and the time between them.
- The queue wait of a turn, and with it the bubble, is the sum over its tries: for each try the time from its arrival
  until it was scheduled, ended or was sent again. The time in which a failed try ran, and the time between tries, are
  in no queue wait.
- Preemptions and their waits are counted in every try.
- A try may find blocks in the cache that an earlier try computed. The ideal hit ratio is never less than the actual
  one.
- A pin that an earlier try took over is a pin hit. If the last try did not find that KV any more, the turn's cause is
  `dropped`.
"""

TAIL = """
## Per policy, in summary.json

Each metric is the mean over the seeds that all policies ran; `intervals` contains its 95% interval (Student's t), which
is null with fewer than three seeds.
If the runs have different routers, each policy has one entry per router, such as `continuum@affinity`. `baseline`
names the policy that the ratios are to: the one given by `--baseline`, else `vllm` or `stock`, else the first; where
routers differ, behind the first router.

| name | unit | what it is |
|---|---|---|
| `policy`, `router` | | policy and router separately; the router is null with one replica |
| `jct_mean_ratio` | | this policy's mean JCT / the baseline's, programs that finished under both; below 1 is faster |
| `jct_mean_ratio_interval` | | 95% interval, paired by seed, symmetric in the logarithm; null below three seeds |
| `jct_mean_ratio_within_one_arrival_sequence` | | one seed only: 95%, programs resampled (paired bootstrap) |
| `difference_to_vllm_s` | s | the baseline's mean JCT - this policy's, the same programs |
| `difference_to_vllm_interval_s` | s | 95% interval (t on per-seed differences) |
| `effect_size_to_vllm` | | Hedges' g_z: mean paired difference / its deviation over n seeds * (1 - 3 / (4n - 5)) |
| `sooner_than_vllm_share` | | programs that finished sooner than under the baseline, ties half; mean over seeds |
| `sooner_than_vllm_interval` | | its 95% interval (t over seeds, cut at 0 and 1) |
| `worst_slowdown_to_vllm` | | the largest ratio of one program's JCT to its JCT under the baseline, over all seeds |
| `paired_programs` | | programs the ratio rests on (finished under both), programs that arrived |
| `finished_programs` | | finished under this policy, under the baseline; who finished fewer is not ranked |
| `pins_by_ending` | | pins by what ended them, summed over seeds |
| `errors_by_kind` | | a live run's failed tries and programs stopped at a limit, by kind, summed over seeds |
| `unfinished`, `failed` | | program ids left out of the times |
| `seeds`, `paired_seeds` | | seeds run, seeds the ratio rests on |

The interval of the difference covers 0 exactly when that of the ratio covers 1. With one seed nothing is known about
other arrival sequences; the resampled interval holds for the sequence that ran.

How often these intervals report a difference between a policy and itself: [self-check](results/self-check.md).

Two runs are paired only if their manifests agree in workload, engine, hardware and engine options (except the tiers
of a `+offload` arm and the router of equal replicas), and if their clients sent the same programs at the same
instants. Otherwise the comparison is refused, and the error names the field.
"""

SLO = """
## Latency

TTFT counts from the instant at which the turn was due to its first token, and TPOT from the first token to the last
one, divided by the output tokens - 1. Where the load generator is on time, "due" and "sent" are the same instant
(`send_lateness_p99_s`). In a virtual run both are modelled; in a live run the client measures them, retries
included.

ITL is the gap between two consecutive output tokens, pooled over all turns, as `vllm bench serve` counts it: where a
chunk brings several tokens (speculative decoding, `--stream-interval`), the time between two chunks is one gap.
Percentiles need the instant of every token. `--token-times` records these gaps in `turns.jsonl` (`token_gaps_ms`, to
three significant digits, with their numbers). Without it the records have the first and the last token of a turn only:
the mean ITL follows from these, and the percentiles are null. In a virtual run the instants are modelled, and
`--token-times` changes no other number. Against a server the load generator then reads every chunk when it comes,
which makes it less punctual under heavy load ([how much](results/generator.md)); its lag (`loop_lag_p99_s` in
`engine.json`) is in the gaps.

## SLO goodput

`continuum-bench compare DIR --slo ttft=2s,tpot=50ms,jct=300s` adds these rows, in the terminal and in every file;
`analyze --slo` adds them too. A turn keeps the SLO if it ended well and kept the limits on TTFT, TPOT and ITL;
`itl=200ms` limits the longest of its gaps between tokens, and needs runs of `--token-times`. A program
keeps it if it finished within the limit on JCT and all its turns kept the limits on turns. Turns and programs that
failed or did not finish do not keep it.

| name | unit | what it is |
|---|---|---|
"""

SLO_TAIL = """
`jct=10x` is ten times the JCT that the same program has alone on the machine, so it limits the program's slowdown.
Virtual runs record how long each turn takes alone. Other runs need `--alone DIR`, a run of the same programs one at a
time. (`figure goodput` limits the mean JCT instead, to a multiple of the mean JCT without load.)

```bash
continuum-bench swebench --num-programs 4 --jps 0.5 --policy vllm,continuum --out runs/loaded
continuum-bench compare runs/loaded --slo jct=10x
```
"""

MISSES = """
## Why a returning turn found its KV, or did not

`continuum-bench analyze DIR --misses` and the report show these causes. Every turn after its program's first gets one
cause, from the records alone. The turn is a hit if it found all KV that it could have found, to within one block. The
KV that it could have found is, in a replay, the tokens that were there before (`reusable_tokens` of `turns.jsonl`),
otherwise the prompt of the turn before.

| cause | what happened |
|---|---|
"""

EXPORTS = """
`continuum-bench analyze DIR --table turns --format parquet --out turns.parquet` gives the cause of every turn, the
seconds by which an expired pin was too short (`late_s`: arrival - the pin's end) and the tokens computed again
(`lost_tokens`). Tables: `runs`, `misses`, `programs`, `turns`, `pins`; forms: `csv`, `json`, `latex`, `markdown`,
`parquet`.
"""


def page() -> str:
    """The text of docs/metrics.md."""
    rows = [f"| `{m.name}` | {m.unit} | {m.formula.replace('|', chr(92) + '|')} |" for m in METRICS]
    causes = [f"| `{cause}` | {words} |" for cause, words in CAUSES.items()]
    of_slo = [f"| `{m.name}` | {m.unit} | {m.formula} |" for m in slo_metrics(read_slo("ttft=1s"))]
    slo = SLO + "\n".join(of_slo) + "\n" + SLO_TAIL
    return HEAD + "\n".join(rows) + "\n" + slo + TRIES + TAIL + MISSES + "\n".join(causes) + "\n" + EXPORTS


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
