"""The record survives what servers go through: SIGKILL, full disks, restarts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from continuum_server.record_file import check_writable
from continuum_server.vllm_plugin.recorder import FLUSH_S, EventRecorder
from continuum_traces.json_io import RunDirError
from continuum_traces.records import read_events
from continuum_traces.records.run_dir import EVENTS, PREVIEW_EVENTS
from continuum_traces.schema import SchedulerEvent


def event(number: int, kind: str = "arrive", program: str = "p") -> SchedulerEvent:
    return SchedulerEvent(float(number), kind, program, number, f"r{number}")  # type: ignore[arg-type]


def turns_in(folder: Path) -> list[int]:
    return [each.turn for each in read_events(folder)]


def flushed(recorder: EventRecorder) -> None:
    """Return once everything written so far was taken up."""
    recorder._queue.join()


def recorded(folder: Path, *events: SchedulerEvent) -> EventRecorder:
    """A record with these events, closed."""
    recorder = EventRecorder(folder)
    for each in events:
        recorder.write(each)
    recorder.close()
    recorder.close()
    return recorder


def test_a_record_is_its_owner_s_alone(tmp_path: Path) -> None:
    """It has digests of API keys."""
    recorded(tmp_path, event(0))
    assert (tmp_path / EVENTS).stat().st_mode & 0o777 == 0o600


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    kinds = [("arrive", 0), ("finish", 0), ("pin", 0), ("unpin", 0), ("arrive", 1), ("finish", 1), ("pin", 1)]
    recorded(tmp_path, *[event(turn, kind) for kind, turn in kinds], event(0, "arrive", "other"))
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"t": 9, "event": "arri')  # torn by a SIGKILL
    second = EventRecorder(tmp_path)
    assert {name: numbers.following for name, numbers in second.resumed.turn_numbers.items()} == {"p": 2, "other": 1}
    second.settle(10.0)
    second.write(event(2))
    second.close()
    events = list(read_events(tmp_path))
    ended = [(e.program_id, e.turn, e.event, e.status or e.reason) for e in events[8:10]]
    assert ended == [("other", 0, "finish", "error"), ("p", 1, "unpin", "shutdown")]
    assert events[-1] == event(2)


def test_a_restart_knows_turns_by_their_ids_and_ends_every_open_try(tmp_path: Path) -> None:
    """A turn's second try came before the server saw that its first had ended, and then the server was killed."""
    arrivals = [SchedulerEvent(0.0, "arrive", "p", 0, "r0", turn_id="0-aa")]
    arrivals += [SchedulerEvent(1.0, "arrive", "p", 1, f"r1{again}", turn_id="1-aa") for again in "ab"]
    recorded(tmp_path, *arrivals, SchedulerEvent(0.5, "finish", "p", 0, "r0", status="stop", turn_id="0-aa"))
    second = EventRecorder(tmp_path)
    numbers = second.resumed.turn_numbers["p"]
    assert [numbers.arrived(turn_id, None) for turn_id in ("1-aa", "0-aa", "2-bb")] == [1, 0, 2]
    second.settle(10.0)
    second.close()
    ended = [(e.turn, e.request_id, e.turn_id, e.status) for e in read_events(tmp_path) if e.t == 10.0]
    assert ended == [(1, "r1a", "1-aa", "error"), (1, "r1b", "1-aa", "error")]


def test_the_previews_file_is_written_at_close_into_its_own_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that cannot be made costs only that file."""
    (tmp_path / "file").write_text("")
    for folder in ("preview", "file"):
        recorder = EventRecorder(tmp_path / f"record-{folder}", tmp_path / folder)
        recorder.write(event(0))
        recorder.close()
    assert json.loads((tmp_path / "preview" / PREVIEW_EVENTS).read_text()) == {"p": [{"Request_arrival_time": 0.0}]}
    assert not (tmp_path / "record-preview" / PREVIEW_EVENTS).exists()
    assert turns_in(tmp_path / "record-preview") == turns_in(tmp_path / "record-file") == [0]
    assert "file" in caplog.text


# --------------------------------------------------------------------------- trouble while it runs


def test_one_event_that_cannot_be_written_is_lost_alone(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path)
    recorder.write(event(0))
    recorder.write(replace(event(1), tool=object()))  # type: ignore[arg-type]
    recorder.write("no event at all")  # type: ignore[arg-type]
    recorder.write(replace(event(2), program_id="\ud800"))
    recorder.write(event(3))
    recorder.close()
    assert turns_in(tmp_path) == [0, 3]
    assert recorder.dropped == 3


@pytest.mark.parametrize(
    "left",
    [
        b"\xff\xfe\n",
        b"\0\0\0\n",
        b"[1]\n",
        *(
            b'{"t": 1, "event": "arrive", "program_id": %b, "turn": %b}\n' % each
            for each in ((b'["a"]', b"0"), (b'"a"', b'"0"'))
        ),
    ],
)
def test_a_damaged_record_is_continued(tmp_path: Path, left: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / EVENTS).write_bytes(left)
    assert recorded(tmp_path, event(0)).dropped == 0
    assert "damaged record" in caplog.text
    assert (tmp_path / EVENTS).read_bytes().splitlines()[-1].startswith(b'{"t":0.0')


def test_a_folder_that_another_server_writes_or_that_is_none_is_named(tmp_path: Path) -> None:
    """A server that starts waits for the one that stops."""
    recorder = EventRecorder(tmp_path)
    with pytest.raises(RunDirError, match="another server writes this file"):
        EventRecorder(tmp_path)
    recorder.write(event(0))
    closing = threading.Timer(0.3, recorder.close)
    closing.start()
    check_writable(tmp_path / EVENTS)
    closing.join()
    assert turns_in(tmp_path) == [0]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="file"):
        EventRecorder(tmp_path / "file")


# --------------------------------------------------------------------------- trouble while it runs


@pytest.mark.parametrize(
    "trouble",
    [
        shutil.rmtree,  # made anew
        lambda folder: folder.rename(folder.parent / "elsewhere"),
        lambda folder: (folder / EVENTS).unlink(),
        *(
            lambda folder, left=left: (folder / EVENTS).write_bytes(left)
            for left in (b"", b'{"t": 9, "ev', b"\0\0\0\0")
        ),
    ],
)
@pytest.mark.parametrize("engine", ["same", "next"])
def test_a_record_that_something_happens_to_goes_on(
    tmp_path: Path, trouble: Callable[[Path], object], engine: str
) -> None:
    """Also to what an engine before has left. What was written a moment ago is in the file, however an engine ends."""
    folder = tmp_path / "record"
    recorder = EventRecorder(folder)
    recorder.write(event(0))
    flushed(recorder)
    assert (turns_in(folder), FLUSH_S < 1.0) == ([0], True)
    if engine == "next":
        recorder.close()
        recorder = EventRecorder(folder)
    trouble(folder)
    recorder.write(event(1))
    recorder.close()
    assert (turns_in(folder), recorder.dropped) == ([1], 0)
    for moved in tmp_path.glob("elsewhere"):
        assert turns_in(moved) == [0]


def failing(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def cut_off(real: Callable[..., int], fd: int, data: bytes, offset: int) -> int:
    """A part still fits."""
    real(fd, data[:7], offset)
    return int(failing())


@pytest.mark.parametrize("broken", [("cut off",), ("pwrite", "ftruncate"), ("fstat",), ("stat",)])
def test_nothing_that_a_disk_does_ends_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Two events fall into the trouble; one line is logged."""
    recorder = EventRecorder(tmp_path)
    recorder.write(event(0))
    flushed(recorder)
    with monkeypatch.context() as patched:
        for name in broken:
            patched.setattr(os, "pwrite" if name == "cut off" else name, failing)
        if broken == ("cut off",):
            patched.setattr(os, "pwrite", partial(cut_off, os.pwrite))
        for number in (1, 2):
            recorder.write(event(number))
            flushed(recorder)
    recorder.write(event(3))
    recorder.close()
    turns = turns_in(tmp_path)
    assert (turns[0], turns[-1], recorder.dropped + len(turns)) == (0, 3, 4)
    if "pwrite" in broken or "cut off" in broken:
        assert (turns, caplog.text.count("No space left")) == ([0, 3], 1)


def test_a_disk_that_hangs_costs_events_but_neither_memory_nor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue fills, then events are counted and dropped; ``close`` does not wait."""
    hangs, goes_on, real = threading.Event(), threading.Event(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *written: (hangs.set(), goes_on.wait(), real(*written))[-1])
    recorder = EventRecorder(tmp_path, limit=100)
    recorder.write(event(0))
    hangs.wait()
    for number in range(1, 151):
        recorder.write(event(number))
    recorder.close(patience_s=0.05)
    recorder.close(patience_s=0.05)
    assert "still being written" in caplog.text
    recorder.write(event(151))  # nobody writes it any more
    assert recorder.dropped == 51
    goes_on.set()
    assert any(turns_in(tmp_path) == list(range(101)) or time.sleep(0.01) for _ in range(1000))
