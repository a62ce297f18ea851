"""Records of several servers as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import recorded_runs
from continuum_analysis.metrics import analyze_run
from continuum_analysis.records.reading import read_run
from continuum_traces.records import read_events, write_rows
from continuum_traces.records.replicas import merge, read_record
from continuum_traces.records.run_dir import EVENTS, engine_folders, replica_name, runs_below
from continuum_traces.schema import SchedulerEvent


def event(t: float, kind: Any, turn: int, program: str = "p", **rest: Any) -> SchedulerEvent:
    return SchedulerEvent(t, kind, program, turn, **rest)


def served(start_s: float, turn: int, prompt: int) -> list[SchedulerEvent]:
    """A turn from arrival to finish in a second."""
    return recorded_runs.served("p", turn, start_s, prompt, wait_s=0.1, run_s=0.9)


def record(folder: Path, *replicas: list[SchedulerEvent]) -> Path:
    for index, events in enumerate(replicas):
        (folder / replica_name(index)).mkdir(parents=True)
        write_rows(folder / replica_name(index) / EVENTS, events)
    return folder


def test_turns_count_over_all_servers(tmp_path: Path) -> None:
    """Round robin: turns 0 and 2 at one server, 1 at the other, which calls it 0."""
    first = [*served(0.0, 0, 100), event(1.0, "pin", 0, ttl_s=2.0), event(3.0, "unpin", 0, reason="expired")]
    first += served(4.0, 1, 300)
    second = [*served(2.0, 0, 200), event(3.0, "pin", 0, ttl_s=0.5), event(3.5, "unpin", 0, reason="expired")]
    folder = record(tmp_path, first, second)
    (program,) = read_run(folder)
    assert [(turn.index, turn.replica, turn.prompt_tokens) for turn in program.turns] == [
        (0, 0, 100),
        (1, 1, 200),
        (2, 0, 300),
    ]
    assert [(pin.turn, pin.until_s) for pin in program.pins] == [(0, 3.0), (1, 3.5)]
    assert program.finished
    assert runs_below(folder) == [folder]
    assert analyze_run(folder).values["programs_finished"] == 1


def test_a_turn_whose_server_died_is_one_turn() -> None:
    """Killed while it ran; the client sent it again, elsewhere, with the same prompt."""
    died = [*served(0.0, 0, 100), event(2.0, "arrive", 1, prompt_tokens=200), event(2.1, "start", 1, hit_tokens=96)]
    other = [*served(4.0, 0, 200), *served(6.0, 1, 300)]
    merged = merge([died, other])
    assert [(e.turn, e.replica) for e in merged if e.event == "arrive"] == [(0, 0), (1, 0), (1, 1), (2, 1)]
    assert all(e.turn == 1 for e in merged if e.event == "start" and 2.0 < e.t < 5.0)


def test_what_a_dead_server_closes_later_changes_nothing(tmp_path: Path) -> None:
    """Restarted, it ends what it had left open; by then the turn was answered elsewhere."""
    died = [*served(0.0, 0, 100), event(2.0, "arrive", 1, prompt_tokens=200), event(2.1, "start", 1, hit_tokens=96)]
    died.append(event(9.0, "finish", 1, status="error", output_tokens=0))
    (program,) = read_run(record(tmp_path, died, [*served(4.0, 0, 200), *served(6.0, 1, 300)]))
    assert program.finished
    again = program.turns[1]
    assert (again.arrive_s, again.start_s, again.finish_s, again.hit_tokens, len(again.earlier)) == (
        2.0,
        4.1,
        5.0,
        0,
        1,
    )
    assert program.jct_s == 7.0


def test_a_program_played_again_starts_anew(tmp_path: Path) -> None:
    folder = record(tmp_path, [*served(0.0, 0, 100), *served(2.0, 1, 200), *served(50.0, 0, 100)], served(52.0, 0, 200))
    assert [e.turn for e in read_record(folder) if e.event == "arrive"] == [0, 1, 0, 1]  # none is a second attempt
    later = read_record(folder, lambda e: e.t >= 50.0)
    assert [(e.turn, e.replica) for e in later if e.event == "arrive"] == [(0, 0), (1, 1)]


def test_events_before_the_first_arrival_stay_as_they_are() -> None:
    (kept,) = merge([[event(0.0, "unpin", 3, reason="expired")]])
    assert (kept.turn, kept.replica) == (3, 0)


def test_one_server_is_read_as_it_is(tmp_path: Path) -> None:
    write_rows(tmp_path / EVENTS, served(0.0, 0, 100))
    assert engine_folders(tmp_path) == [tmp_path]
    assert read_record(tmp_path) == list(read_events(tmp_path)) == served(0.0, 0, 100)


def test_the_ranks_of_data_parallelism_are_engines_of_one_record(tmp_path: Path) -> None:
    """vLLM's rank 0 writes into the folder itself, rank N into ``rankN``; a restarted client may meet either."""
    write_rows(tmp_path / EVENTS, served(0.0, 0, 100))
    for rank, start_s in ((2, 2.0), (10, 4.0)):
        (tmp_path / f"rank{rank}").mkdir()
        write_rows(tmp_path / f"rank{rank}" / EVENTS, served(start_s, 0, int(100 * start_s)))
    (tmp_path / "rank-1").mkdir()
    arrivals = [(e.turn, e.replica) for e in read_record(tmp_path) if e.event == "arrive"]
    assert arrivals == [(0, 0), (1, 1), (2, 2)]
    assert runs_below(tmp_path) == [tmp_path]


def test_a_record_of_a_rank_alone_is_read(tmp_path: Path) -> None:
    """The second machine of a server on two machines has no rank 0."""
    (tmp_path / "rank1").mkdir()
    write_rows(tmp_path / "rank1" / EVENTS, served(0.0, 0, 100))
    assert [e.t for e in read_record(tmp_path)] == [e.t for e in served(0.0, 0, 100)]
    assert runs_below(tmp_path) == [tmp_path]
