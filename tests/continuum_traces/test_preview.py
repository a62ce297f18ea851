"""Files of the papers' public preview, above all those of two servers behind one router."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from continuum_traces.json_io import RunDirError
from continuum_traces.records.run_dir import PREVIEW_EVENTS, runs_below
from continuum_traces.records.scheduler_timestamps import read_preview, served_together

Turn = tuple[float, float, float]
"""Arrival, start and departure."""


def write(folder: Path, programs: Mapping[str, Sequence[Turn]]) -> Path:
    folder.mkdir(parents=True)
    entries = {
        name: [
            entry
            for arrival, start, departure in turns
            for entry in (
                {"Request_arrival_time": arrival},
                {"waiting_to_running": start, "prompt_length": 100, "hit_length": 50},
                {"Request_departure_time": departure},
            )
        ]
        for name, turns in programs.items()
    }
    file = folder / PREVIEW_EVENTS
    file.write_text(json.dumps(entries))
    return file


FIRST = {"a": [(0.0, 1.0, 2.0), (9.0, 9.5, 10.0)], "b": [(1.0, 1.0, 3.0)]}
SECOND = {"a": [(4.0, 5.0, 8.0)], "c": [(2.0, 2.0, 6.0)]}


def test_a_program_that_moved_between_servers_is_one_program(tmp_path: Path) -> None:
    files = [write(tmp_path / "run" / name, half) for name, half in (("8001", FIRST), ("8002", SECOND))]
    events = [event for event in read_preview(*files) if event.program_id == "a"]
    assert [(event.turn, event.t) for event in events if event.event == "start"] == [(0, 1.0), (1, 5.0), (2, 9.5)]
    assert runs_below(tmp_path / "run") == runs_below(tmp_path) == [tmp_path / "run"]


@pytest.mark.parametrize(
    ("second", "together"),
    [
        (SECOND, True),
        ({"c": [(10.0, 10.0, 11.0)]}, True),  # it began when the other ended
        ({"c": [(10.1, 10.1, 11.0)]}, False),  # it ran afterwards, as another run
        ({"a": [(2.0, 2.0, 9.0)]}, True),
        ({"a": [(1.9, 2.0, 9.0)]}, False),  # a program has one request at a time
        (FIRST, False),  # two policies under one clock
        ({}, False),
    ],
)
def test_servers_of_one_run_are_told_from_two_runs(
    tmp_path: Path, second: Mapping[str, Sequence[Turn]], together: bool
) -> None:
    files = [write(tmp_path / name, half) for name, half in (("one", FIRST), ("two", second))]
    assert served_together(files) is together
    assert len(runs_below(tmp_path)) == (1 if together else 2)


def test_one_file_is_no_pair(tmp_path: Path) -> None:
    assert not served_together([])
    assert not served_together([write(tmp_path / "one", FIRST)])
    assert runs_below(tmp_path) == [tmp_path / "one"]


def test_a_fault_names_file_program_and_entry(tmp_path: Path) -> None:
    file = write(tmp_path / "one", FIRST)
    file.write_text(json.dumps({"a": [{"Request_arrival_time": 0.0}, {"departed": 1.0}]}))
    with pytest.raises(RunDirError, match=rf"{PREVIEW_EVENTS}: a\[1\]: expected an object with one of Request_arrival"):
        read_preview(file)
