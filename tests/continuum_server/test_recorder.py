"""The record survives what servers go through: SIGKILL, full disks, restarts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_server.record_file import check_writable
from continuum_server.vllm_plugin.recorder import FLUSH_S, EventRecorder
from continuum_traces.run_dir import EVENTS, PREVIEW_EVENTS, RunDirError, read_events
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


def test_events_are_there_after_close(tmp_path: Path) -> None:
    recorded(tmp_path / "new" / "folder", *map(event, range(1000)))
    assert turns_in(tmp_path / "new" / "folder") == list(range(1000))


_WRITER = """
import sys, time
from pathlib import Path
from continuum_server.vllm_plugin.recorder import EventRecorder
from continuum_traces.schema import SchedulerEvent
recorder = EventRecorder(Path(sys.argv[1]))
for number in range(10**9):
    recorder.write(SchedulerEvent(time.time(), "arrive", "p", number))
    time.sleep(0.001)
"""


def test_after_sigkill_only_what_waited_to_be_written_is_missing(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)])
    try:
        while not (tmp_path / EVENTS).exists() or (tmp_path / EVENTS).stat().st_size < 20_000:
            time.sleep(0.05)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    turns = turns_in(tmp_path)
    assert turns == list(range(len(turns)))
    assert FLUSH_S < 1.0  # the longest wait


def test_a_full_disk_costs_events_not_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, full = os.pwrite, [False]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if full[0]:
            real(fd, data[:7], offset)  # a part still fitted
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    recorder = EventRecorder(tmp_path)
    for phase in (False, True, True, False):
        full[0] = phase
        recorder.write(event(int(phase)))
        flushed(recorder)
    recorder.close()
    assert turns_in(tmp_path) == [0, 0]
    assert recorder.dropped == 2
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_a_restart_goes_on_in_the_same_file(tmp_path: Path) -> None:
    kinds = [("arrive", 0), ("finish", 0), ("pin", 0), ("unpin", 0), ("arrive", 1), ("finish", 1), ("pin", 1)]
    recorded(tmp_path, *[event(turn, kind) for kind, turn in kinds], event(0, "arrive", "other"))
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"t": 9, "event": "arri')  # torn by a SIGKILL
    second = EventRecorder(tmp_path)
    assert second.resumed.next_turn == {"p": 2, "other": 1}
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
    assert second.resumed.next_turn == {"p": 2}
    numbers = second.resumed.turn_numbers["p"]
    assert [numbers.arrived(turn_id, None, 2) for turn_id in ("1-aa", "0-aa", "2-bb")] == [1, 0, 2]
    second.settle(10.0)
    second.close()
    ended = [(e.turn, e.request_id, e.turn_id, e.status) for e in read_events(tmp_path) if e.t == 10.0]
    assert ended == [(1, "r1a", "1-aa", "error"), (1, "r1b", "1-aa", "error")]


def test_a_server_that_starts_waits_for_the_one_that_stops(tmp_path: Path) -> None:
    first = EventRecorder(tmp_path)
    closing = threading.Timer(0.3, first.close)
    closing.start()
    check_writable(tmp_path / EVENTS)
    closing.join()
    EventRecorder(tmp_path).close()


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


def test_a_folder_that_another_server_writes_or_that_is_none_is_named(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path)
    with pytest.raises(RunDirError, match="another server writes this file"):
        EventRecorder(tmp_path)
    recorder.write(event(0))
    recorder.close()
    assert turns_in(tmp_path) == [0]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirError, match="file"):
        EventRecorder(tmp_path / "file")


# --------------------------------------------------------------------------- trouble while it runs


def moved_away(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    "trouble",
    [
        shutil.rmtree,
        moved_away,
        lambda folder: (folder / EVENTS).unlink(),
        lambda folder: (folder / EVENTS).write_bytes(b""),
        lambda folder: (folder / EVENTS).write_bytes(b'{"t": 9, "ev'),
        lambda folder: (folder / EVENTS).write_bytes(b"\0\0\0\0"),
    ],
)
@pytest.mark.parametrize("engine", ["same", "next"])
def test_a_record_that_something_happens_to_goes_on(
    tmp_path: Path, trouble: Callable[[Path], object], engine: str
) -> None:
    """Also to what an engine before has left."""
    folder = tmp_path / "record"
    recorder = EventRecorder(folder)
    recorder.write(event(0))
    flushed(recorder)
    if engine == "next":
        recorder.close()
        recorder = EventRecorder(folder)
    trouble(folder)
    recorder.write(event(1))
    recorder.close()
    assert turns_in(folder) == [1]
    assert recorder.dropped == 0
    if trouble is moved_away:
        assert turns_in(tmp_path / "elsewhere") == [0]


def test_many_losses_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "record"
    recorder = EventRecorder(folder)
    for number in range(3):
        recorder.write(event(number))
        flushed(recorder)
        shutil.rmtree(folder)
    folder.write_text("in the way")  # it cannot be made again, and is tried again
    recorder.write(event(3))
    flushed(recorder)
    folder.unlink()
    recorder.write(event(4))
    recorder.close()
    assert turns_in(folder) == [4]
    assert recorder.dropped == 1
    assert (caplog.text.count("was deleted"), caplog.text.count("cannot write /")) == (1, 1)


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


@pytest.mark.parametrize("broken", [("pwrite",), ("pwrite", "ftruncate"), ("fstat",), ("stat",)])
def test_nothing_that_a_disk_does_ends_the_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, ...]
) -> None:
    recorder = EventRecorder(tmp_path)

    def fail(*_: object, **__: object) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        for name in broken:
            patched.setattr(os, name, fail)
        recorder.write(event(0))
        flushed(recorder)
    recorder.write(event(1))
    recorder.close()
    assert turns_in(tmp_path)[-1] == 1
    assert recorder.dropped + len(turns_in(tmp_path)) == 2


@pytest.fixture
def hung_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Writes hang once the first of these is set, and go on when the second is."""
    hangs, goes_on, real = threading.Event(), threading.Event(), os.pwrite

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        hangs.set()
        goes_on.wait()
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    yield hangs, goes_on
    goes_on.set()


def test_what_waits_to_be_written_is_bounded(
    tmp_path: Path, hung_disk: tuple[threading.Event, threading.Event]
) -> None:
    """The queue fills, then events are counted and dropped; serving goes on."""
    hangs, goes_on = hung_disk
    recorder = EventRecorder(tmp_path, limit=100)
    recorder.write(event(0))
    hangs.wait()
    for number in range(1, 151):
        recorder.write(event(number))
    goes_on.set()
    recorder.close()
    assert turns_in(tmp_path) == list(range(101))  # one is being written
    assert recorder.dropped == 50


@pytest.mark.usefixtures("hung_disk")
def test_close_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = EventRecorder(tmp_path)
    recorder.write(event(0))
    recorder.close(patience_s=0.05)
    recorder.close(patience_s=0.05)
    assert "still being written" in caplog.text
    recorder.write(event(1))  # nobody writes it any more
    assert recorder.dropped == 1


NO_NAME = b'{"t": 1, "event": "arrive", "program_id": ["a"], "turn": 0}\n'
NO_NUMBER = b'{"t": 1, "event": "arrive", "program_id": "a", "turn": "0"}\n'


@pytest.mark.parametrize("left", [b"\xff\xfe\n", b"\0\0\0\n", b"[1]\n", NO_NAME, NO_NUMBER])
def test_a_damaged_record_is_continued(tmp_path: Path, left: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / EVENTS).write_bytes(left)
    assert recorded(tmp_path, event(0)).dropped == 0
    assert "damaged record" in caplog.text
    assert (tmp_path / EVENTS).read_bytes().splitlines()[-1].startswith(b'{"t":0.0')
