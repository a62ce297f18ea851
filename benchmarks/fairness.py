"""Prints how long honest programs take beside clients that send misleading tags or ids.

    python benchmarks/fairness.py [--policy working-set] [--rows fresh-id,own-old-id] [--limit-s 15]

Forty clients send one request after the other. Beside them arrive eight honest programs of two turns. The rows
(``fairness_rows.py``) differ in the ids and tags of the forty clients. Each runs on vLLM's scheduler in virtual time,
with an A100's modelled step times and 1,200 KV blocks (``fairness_bench.py``).
"""

from __future__ import annotations

import argparse
from statistics import mean

from commands import show
from continuum_analysis.compare.words import markdown
from continuum_server.policy.program_table import Guards
from fairness_bench import honest_times_s
from fairness_rows import PROGRAMS, ROWS


def cells(name: str, policy: str, limit_s: float, guards: Guards) -> tuple[str, ...]:
    row, sends = ROWS[name]
    times_s = honest_times_s(row, policy, limit_s=limit_s, guards=guards)
    over = f"{len(times_s)} of {PROGRAMS}" + (f" in {limit_s:g} s" if len(times_s) < PROGRAMS else "")
    return f"`{name}`", sends, over, *(f"{of(times_s):.1f}" if times_s else "-" for of in (mean, max))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="working-set")
    parser.add_argument("--rows", default=",".join(ROWS), help="names of rows, separated by commas; default: all")
    parser.add_argument("--limit-s", type=float, default=15.0, help="seconds after the first honest program arrived")
    parser.add_argument("--max-overtake-s", type=float, default=Guards().max_overtake_s, help="as of continuum-bench")
    options = parser.parse_args()
    guards = Guards(max_overtake_s=options.max_overtake_s)
    names = options.rows.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error(f"--rows {unknown[0]}: there are {', '.join(ROWS)}")
    rows = (cells(name, options.policy, options.limit_s, guards) for name in names)
    show(markdown(("row", "the other 40 clients send", "honest programs over", "mean, s", "longest, s"), rows))


if __name__ == "__main__":
    main()
