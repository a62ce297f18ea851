"""Draws cells for own_policy.py at random, as workloads for which no policy was tuned.

    python benchmarks/own_policy_random.py --draw 2 --cells 48 > cells.json

Cells use the bundled profiles with lengths scaled by 0.1 to 0.5, 16 to 40 programs, KV pools for 1.4 to 12.6 programs
of mean size (and at least for the largest), rates from rest to overload, and all kinds of tool times and arrivals.
docs/results/own-policy.md uses draw 2, which was not looked at while the policy was developed. The cells of
cells_drawn.json were drawn in the same way and were used for development.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any

from own_policy import jobs_of


def draw(dice: random.Random) -> dict[str, Any]:
    tool_times = dice.choice(
        (
            *("recorded",) * 3,
            f"constant:{10 ** dice.uniform(-0.5, 1.3):.1f}",
            f"bimodal:{dice.uniform(0.5, 0.9):.1f}:0.5:{dice.randint(5, 60)}",
            f"shift:{dice.randint(3, 20)}",
            "hang:0.05",
        )
    )
    cell = {
        "workload": dice.choice(("swebench", "bfcl", "openhands")),
        "num_programs": dice.randint(16, 40),
        "length_scale": round(10 ** dice.uniform(-1.0, -0.3), 2),
        "jps": round(10 ** dice.uniform(-0.9, 0.5), 2),
        "gpu": dice.choice(("h100-80gb", "a100-80gb")),
        "tool_times": tool_times,
        "arrivals": dice.choice(("poisson", "poisson", "gamma:3", "gamma:0.3")),
    }
    turns = [job.program for job in jobs_of(cell, 0)]
    sizes = [max(p + t.output_tokens for p, t in zip(one.prompt_tokens(), one.turns, strict=True)) for one in turns]
    fitting = 10 ** dice.uniform(0.15, 1.1)
    return cell | {"kv_blocks": int(max(fitting * sum(sizes) / len(sizes), 1.1 * max(sizes)) / 16)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=2, help="seed of the random numbers")
    parser.add_argument("--cells", type=int, default=48)
    given = parser.parse_args()
    dice = random.Random(given.draw)
    cells = {f"draw{given.draw}-{number}": draw(dice) for number in range(given.cells)}
    sys.stdout.write("{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(cells[name])}" for name in cells) + "\n}\n")


if __name__ == "__main__":
    main()
