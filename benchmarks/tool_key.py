"""Compares three keys under which tool times can be recorded: first word, first real program, the client's name.

    python benchmarks/tool_key.py TRACE [--jps 0.03] [--programs 50] [--seeds 3] [--gpu a100-80gb] [--no-jct]

TRACE is a numeric file (docs/trace-format.md) whose lines have ``tools`` (first words) and ``tools_main`` (first real
programs). The client's name of a shell agent's tool is the same for every turn, so it is one key for all.

Prediction: the turns in the order in which they were answered; each is predicted from the earlier ones with the
policy's own rule (the times of the tool if there are more than K = 100, else those of all tools). Pay-off: a pin earns
G if the next turn comes within the TTL, and costs the seconds that it is held; the table shows the share of what it
would earn if the tool times were known. JCT: policy ``continuum`` on the virtual engine with equal arrivals; only the
names differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from bisect import insort
from collections.abc import Iterable
from math import log10
from pathlib import Path
from typing import Any

from commands import bench, markdown
from continuum_server.policy.tool_statistics import ToolStatistics
from continuum_traces.jsonl import text_lines
from continuum_traces.run_dir import read_turns
from scipy import stats

Row = dict[str, Any]
COLD = 100
GAINS = (0.5, 2.0, 10.0, 60.0)
KEYS = {
    "client's name (one for all)": lambda row: ["bash"],
    "first word": lambda row: row["tools"],
    "first real program": lambda row: row["tools_main"],
}


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for _, line in text_lines(path)]


class Medians:
    """Predicts the median of the times of a key, or of all keys while the key has few times (as the policy does)."""

    def __init__(self) -> None:
        self._all: list[float] = []
        self._own: dict[str, list[float]] = {}

    def predict(self, key: str) -> float:
        own = self._own.get(key, [])
        times = own if len(own) > COLD else self._all
        return times[len(times) // 2] if times else 0.0

    def add(self, key: str, seconds: float) -> None:
        insort(self._all, seconds)
        insort(self._own.setdefault(key, []), seconds)


def predicted(rows: Iterable[Row], key_of: Any) -> dict[str, float]:
    medians, tools = Medians(), ToolStatistics(COLD, 1_000_000)
    errors: list[float] = []
    squared_logs: list[float] = []
    earned, possible = dict.fromkeys(GAINS, 0.0), dict.fromkeys(GAINS, 0.0)
    keys: set[str] = set()
    for row in rows:
        names, seconds = key_of(row), row["tool_s"]
        key = "+".join(sorted(set(names)))
        keys.add(key)
        if not tools.is_cold:
            guess = medians.predict(key)
            errors.append(abs(seconds - guess))
            squared_logs.append(log_ratio(seconds, guess) ** 2)
            for gain in GAINS:
                ttl_s = tools.times_for(key).best_ttl(gain)
                earned[gain] += (gain if seconds <= ttl_s else 0.0) - min(ttl_s, seconds)
                possible[gain] += max(0.0, gain - seconds)
        medians.add(key, seconds)
        tools.add(key, seconds)
    return {
        "keys": len(keys),
        "turns": len(errors),
        "error": statistics.fmean(errors),
        "factor": 10.0 ** statistics.fmean(squared_logs) ** 0.5,
        **{f"G{gain:g}": earned[gain] / possible[gain] for gain in GAINS},
    }


def log_ratio(seconds: float, guess: float) -> float:
    return log10(max(seconds, 1e-3) / max(guess, 1e-3))


def prediction(rows: list[Row]) -> None:
    timed = [row for row in rows if row.get("tool_s") is not None and row.get("tools") and row.get("tools_main")]
    timed.sort(key=lambda row: row.get("t_resp") or 0.0)
    head = [
        "key",
        "keys",
        "mean error of the median",
        "typical factor",
        *(f"pay-off, G = {gain:g} s" for gain in GAINS),
    ]
    lines = []
    for name, key_of in KEYS.items():
        found = predicted(timed, key_of)
        shares = [f"{found[f'G{gain:g}']:.1%}" for gain in GAINS]
        lines.append([name, f"{found['keys']:.0f}", f"{found['error']:.3f} s", f"{found['factor']:.2f}x", *shares])
    sys.stdout.write(f"{len(timed)} turns with a time and a name\n\n")
    sys.stdout.write(f"{markdown(head, lines)}\n\n")
    slowest(timed)


def slowest(timed: list[Row]) -> None:
    """Print the keys with the most time, by first word and by program."""
    for name, key_of in list(KEYS.items())[1:]:
        by_key: dict[str, list[float]] = {}
        for row in timed:
            by_key.setdefault(key_of(row)[0], []).append(row["tool_s"])
        total = sum(map(sum, by_key.values()))
        top = sorted(by_key.items(), key=lambda item: -sum(item[1]))[:5]
        said = (f"{key} {sum(times) / total:.0%} (mean {statistics.fmean(times):.2f} s)" for key, times in top)
        sys.stdout.write(f"Most time by {name}: {', '.join(said)}\n\n")


# ---------------------------------------------------------------------------------------------------- JCT


def jcts(folder: Path) -> dict[str, float]:
    """Return the JCT of every program of a run."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for turn in read_turns(folder):
        first.setdefault(turn.program_id, turn.due_s)
        last[turn.program_id] = turn.finish_s or 0.0
    return {name: last[name] - first[name] for name in first}


def play(rows: list[Row], key_of: Any, options: argparse.Namespace, folder: Path) -> list[float]:
    """Replay the trace with the names of this key, and return the mean JCT of each seed."""
    file = folder / "trace.jsonl"
    folder.mkdir()
    with file.open("w") as lines:
        for row in rows:
            names = key_of(row) if row.get("tools") else row.get("tools")
            lines.write(json.dumps({**row, "tools": names, "tools_main": names}) + "\n")
    load = ["--jps", options.jps, "--num-programs", options.programs, "--seeds", options.seeds, "--gpu", options.gpu]
    bench("replay", file, "--policy", "continuum", *load, "--no-report", "--out", folder / "run")
    runs = [folder / "run" / f"continuum-seed{seed}" for seed in range(options.seeds)]
    return [statistics.fmean(jcts(run).values()) for run in runs]


def completion(rows: list[Row], options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        found = {key: play(rows, key_of, options, Path(name) / key.split()[-1]) for key, key_of in KEYS.items()}
    base = found["first real program"]
    head = ["key", "mean JCT", "against first real program (95%)"]
    sys.stdout.write(f"{markdown(head, [_line(key, own, base) for key, own in found.items()])}\n\n")


def _line(key: str, own: list[float], base: list[float]) -> list[str]:
    differences = [a - b for a, b in zip(own, base, strict=True)]
    mean = statistics.fmean(differences)
    if own is base or len(own) < 2:
        return [key, f"{statistics.fmean(own):.1f} s", "-"]
    half = stats.t.ppf(0.975, len(own) - 1) * statistics.stdev(differences) / len(own) ** 0.5
    return [key, f"{statistics.fmean(own):.1f} s", f"{mean:+.1f} s ({mean - half:+.1f} to {mean + half:+.1f})"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--jps", type=float, default=0.03)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gpu", default="a100-80gb")
    parser.add_argument("--no-jct", action="store_true")
    options = parser.parse_args()
    rows = rows_of(options.trace)
    prediction(rows)
    if not options.no_jct:
        completion(rows, options)


if __name__ == "__main__":
    main()
