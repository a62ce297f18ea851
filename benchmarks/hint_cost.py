"""Measures how much processor time a predicted tool time costs the scheduler for each turn.

    python benchmarks/hint_cost.py [--turns 20000]

One program plays turns under ``working-set`` and ``continuum`` with 1,000 recorded gaps. The time is that of the policy
for a turn's arrival, start and finish; the first decile over turns is printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from continuum_server.policy.catalog import make_policy
from continuum_server.policy.facts import Machine, PrefillCurve, TurnState
from continuum_server.policy.program_table import Guards, ProgramTable


def turn_us(policy: str, hinted: bool, turns: int) -> float:
    machine = Machine(PrefillCurve(1.5e-9, 5.5e-5, 0.0), kv_tokens=440_000)
    table, chance = ProgramTable(make_policy(policy, {}, machine), Guards(), machine.kv_tokens), random.Random(0)
    now_s, spent = 0.0, []
    program = table.program_for("p", now_s)
    for number in range(turns):
        gap_s = chance.lognormvariate(1.0, 1.5)
        turn = TurnState(program, 0, str(number), now_s, 20_000, table.next_sequence())
        turn.tool_hint_s, turn.ran_s = (gap_s, 1.0) if hinted else (None, None)
        began = time.perf_counter()  # noqa: TID251 - a benchmark
        table.arrive(turn, now_s)
        table.start(turn, now_s, 0, 16)
        table.finish(turn, now_s, 20_000, 100, "ls")
        if number > 1000:
            spent.append(time.perf_counter() - began)  # noqa: TID251 - a benchmark
        now_s += gap_s
    return statistics.quantiles(spent, n=10)[0] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000)
    turns = parser.parse_args().turns
    print("| policy | without a hint, us | with `pred_tool_s`, us |\n|---|---|---|")  # noqa: T201
    for policy in ("working-set", "continuum"):
        print(f"| {policy} | {turn_us(policy, False, turns):.1f} | {turn_us(policy, True, turns):.1f} |")  # noqa: T201


if __name__ == "__main__":
    main()
