"""Texts of servers, models and files in a terminal: they move no cursor, ring no bell, turn no line round."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from bench_cli import bench
from continuum_analysis.compare.words import TextTable
from continuum_bench.show import Terminal, print_line, rich_table
from continuum_traces.names import harmless
from recorded_runs import write_recorded
from rich.live import Live

ESCAPES = "\x1b[2J\x07\x9b31m\u202e\u2066\u200b\x7f\ud800"
"""Clear the screen, ring, red in one byte, right to left (twice), a space of no width, delete, half a character."""
SHOWN = r"\x1b[2J\x07\x9b31m\u202e\u2066\u200b\x7f\ud800"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (ESCAPES, SHOWN),
        ("naïve — 漢字 ✓\tx\n", "naïve — 漢字 ✓\tx\n"),
        ("a\xa0b", "a\xa0b"),
        ("a\rb\x00", r"a\rb\x00"),
        ("\x1b]8;;http://x\x07y", r"\x1b]8;;http://x\x07y"),  # a link
        ("\x9d0;title\x9c\x85", r"\x9d0;title\x9c\x85"),  # the window's title, in C1; a new line
        ("\u2028\u2029\ufeff\u061c\xad", r"\u2028\u2029\ufeff\u061c\xad"),
        ("\U000e0041", r"\U000e0041"),  # a letter that nobody sees
        ("", ""),
    ],
)
def test_what_a_terminal_obeys_is_written_out(text: str, shown: str) -> None:
    assert harmless(text) == shown
    assert harmless(shown) == shown


def test_tables_lines_and_live_views(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is rich's markup in them obeyed, and the table's columns stay in line."""
    written = io.StringIO()
    terminal = Terminal(file=written, width=100, force_terminal=True)
    name = "[red]x[/red]:smile:" + ESCAPES[:5]
    table = rich_table(TextTable(["policy", "n"], [[name, "1"], ["plain", "2"]]))
    terminal.print(table)
    with Live(table, console=terminal, auto_refresh=False):
        pass
    terminal.print(name)
    print_line(name)
    said = written.getvalue() + capsys.readouterr().out
    assert said.count(r"[red]x[/red]:smile:\x1b[2J") == 5  # rich itself leaves the bell out
    assert "\x1b[2J" not in said
    lines = [line for line in written.getvalue().splitlines() if line.startswith("│")]
    assert len({len(line) for line in lines}) == 1


def test_a_table_of_what_was_recorded(tmp_path: Path) -> None:
    """The files keep the bytes."""
    out = tmp_path / "r"
    for number, policy in enumerate(("vllm", f"mine{ESCAPES[:5]}")):
        write_recorded(out / str(number), policy, 0, [2.5, 5.5])
    printed = bench("compare", out).output
    assert r"\x1b[2J" in printed
    assert not set(printed) & {"\x1b", "\x07"}
    assert any("\x1b" in json.loads(path.read_text())["policy"] for path in out.glob("*/manifest.json"))


def test_a_trace_s_faults_and_statistics(tmp_path: Path) -> None:
    rows = [
        {"kind": "header", "schema": "continuum-trace", "version": 1, "source": ESCAPES[:5]},
        {"kind": "program", "program_id": "p", "source": ESCAPES[:5]},
        {
            "kind": "turn",
            "program_id": "p",
            "turn": 0,
            "new_input_tokens": 5,
            "output_tokens": 5,
            "tool_calls": [{"name": "ls" + ESCAPES[:5], "duration_s": 1}],
        },
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = bench("traces", "stats", trace).output
    assert r"\x1b[2J" in printed
    trace.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"kind": "turn", "program_id": ESCAPES[:5]})))
    faults = bench("traces", "validate", trace).output
    for said in (printed, faults):
        assert not set(said) & {"\x1b", "\x07"}
