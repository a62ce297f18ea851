"""Records of every program as it runs: a run directory that ``continuum-bench`` reads as it is.

``turns.jsonl``    one ``TurnRecord`` for each call, written when its reply has ended
``trace.jsonl``    the programs as a trace (docs/trace-format.md). A turn's line says what followed it, so it is
written when
                   the program's next turn has ended, or the program; ``recover`` adds what a killed process left out
``manifest.json``  versions

Several processes may write one directory. Memory: one turn for each open program, and a number for each program's id.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from continuum_traces.lines import end_line, header_line, program_line, turn_line
from continuum_traces.run_dir import MANIFEST, TURNS, write_manifest
from continuum_traces.schema import Manifest, Program, TurnRecord

from continuum_client.appender import Held, Presence, SharedLines
from continuum_client.errors import once
from continuum_client.program import MAX_RUNS, ToolRun
from continuum_client.recover import TRACE, add_missing_turns
from continuum_client.reply import Content
from continuum_client.turns import Ended, Join, calls_after, join, key_of, turn_of

WRITERS = "writers.lock"

Clock = Callable[[], float]


def tool_as_named(name: str, arguments: str) -> str:
    """The function's name, whatever its arguments."""
    return name


class Recorder:
    """Writes a run directory. Never raises into the agent: what cannot be written is one warning, and no record.

    Args:
        path: the directory; made if it is not there, joined if it is.
        content: ``none``: numbers and tool names only. ``digest``: also digests of tool arguments. ``full``: the
            answers' text and the tools' arguments. Prompts are never written.
        source: what the programs are, for the trace.
        tool_key: from a tool's name and arguments (empty with ``none``) to the name to record.
        durable: wait for the disk at every turn: nothing is lost when the machine stops. Otherwise nothing is lost when
            the process is killed.
        clock, wall: seconds, steady and since the epoch.

    Raises:
        ValueError: an unknown ``content``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        content: Content = "none",
        source: str = "continuum_client",
        tool_key: Callable[[str, str], str] = tool_as_named,
        durable: bool = False,
        clock: Clock = time.monotonic,  # noqa: TID251 - the default of an injected clock
        wall: Clock = time.time,  # noqa: TID251
    ) -> None:
        if content not in ("none", "digest", "full"):
            raise ValueError(f"content {content!r}: there are none, digest, full")
        self.path = Path(path)
        self.content: Content = content
        self.source = source
        self.tool_key = tool_key
        self.clock = clock
        self.off = False
        """True once writing has failed."""
        self._durable = durable
        self._ids: set[int] = set()
        self._epoch_offset_s = wall() - clock()
        self._start_s = 0.0
        self.guarded(self._open)

    def ledger(self, program_id: str, parent_id: str | None) -> Ledger:
        """The pages of one program."""
        return Ledger(self, program_id, parent_id)

    def offset_s(self, at_s: float) -> float:
        """Seconds since the directory was begun, by whichever process."""
        return round(max(0.0, at_s - self._start_s), 6)

    def guarded(self, write: Callable[[], None]) -> None:
        """Run a write; the first that fails ends the recording."""
        if self.off:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001 - recording is a guest: what it raises must not reach the agent
            self.off = True
            once.warn(f"record {self.path}", f"{self.path}: nothing more is recorded, the agent goes on: {error}")

    # --------------------------------------------------------------------------------------- files

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._presence = Presence(self.path / WRITERS)
        if self._presence.alone:
            add_missing_turns(self.path)
        now_s = self._epoch_offset_s + self.clock()
        header = header_line(source=self.source, started_s=round(now_s, 6))
        self._turns = SharedLines(self.path / TURNS, durable=self._durable)
        self._trace = SharedLines(self.path / TRACE, _line(header).rstrip(b"\n"), self._durable)
        self._start_s = self._started_s(now_s) - self._epoch_offset_s
        with self._trace.locked():
            if not (self.path / MANIFEST).exists():
                write_manifest(self.path, self._manifest(now_s))
        self._presence.share()

    def _started_s(self, now_s: float) -> float:
        """When the directory was begun, in seconds since the epoch: its trace's header says."""
        with (self.path / TRACE).open(encoding="utf-8") as lines:
            first = json.loads(lines.readline())
        started = first.get("started_s") if isinstance(first, dict) else None
        return float(started) if isinstance(started, int | float) else now_s

    def _manifest(self, now_s: float) -> Manifest:
        packages = {name: _version(name) for name in ("openai", "continuum-ttl")}
        return Manifest(
            created=datetime.fromtimestamp(now_s, timezone.utc).isoformat(timespec="seconds"),
            continuum_version=packages.pop("continuum-ttl"),
            versions={"python": platform.python_version(), **packages},
            notes=("recorded by continuum_client from a running agent",),
        )

    def write_turn(self, wanted_id: str, first: bool, record: Mapping[str, Any]) -> str:
        """One line of turns.jsonl. Gives the id the program is recorded under: the wanted one, or, where this directory
        has another program of that name, one with ``#2`` after it."""
        with self._turns.locked() as held:
            program_id = self._claim(held, wanted_id) if first else wanted_id
            held.write(_line({**record, "program_id": program_id}))
        return program_id

    def _claim(self, held: Held, wanted: str) -> str:
        for line in held.unread():
            self._ids.add(hash(json.loads(line)["program_id"]))
        number, program_id = 1, wanted
        while hash(program_id) in self._ids:
            number += 1
            program_id = f"{wanted}#{number}"
        self._ids.add(hash(program_id))
        return program_id

    def write_trace(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Lines of trace.jsonl, together."""
        self._trace.append(b"".join(_line(line) for line in lines))


class Ledger:
    """One program's records. Calls may end in any thread; a turn's number is the order in which they ended."""

    def __init__(self, recorder: Recorder, program_id: str, parent_id: str | None) -> None:
        self.recorder = recorder
        self._begin(program_id, parent_id)

    def _begin(self, program_id: str, parent_id: str | None) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._id = program_id
        self._parent_id = parent_id
        self._records = 0
        self._turns = 0
        self._arrival_s = 0.0
        self._runs: tuple[ToolRun, ...] = ()
        """Tools since the last turn of the trace; more than one call's where calls between failed."""
        self._last: Ended | None = None
        self._joined = Join(0)
        self._under_way = 0
        self._over: Sequence[ToolRun] | None = None
        self._finished = False

    def begin_turn(self) -> None:
        """A call leaves; ``end_turn`` follows."""
        if os.getpid() != self._pid:  # a fork of the program's process goes on with it: a program of its own
            self._begin(f"{self._id}~{os.getpid()}", self._id)
        with self._lock:
            self._under_way += 1

    def end_turn(self, ended: Ended) -> None:
        """A call has ended, well or not."""
        with self._lock:
            self._under_way -= 1
            self.recorder.guarded(lambda: self._write(ended))
            if self._over is not None and self._under_way <= 0:
                self._finish(self._over)

    def finish(self, runs: Sequence[ToolRun] = (), at_once: bool = False) -> None:
        """The program is over. Does nothing the second time, or in a fork.

        Args:
            runs: tools after its last call.
            at_once: do not wait for replies that are still being read.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._over = runs
            if at_once or self._under_way <= 0:
                self._finish(runs)

    def _finish(self, runs: Sequence[ToolRun]) -> None:
        if not self._finished:
            self._finished = True
            self.recorder.guarded(lambda: self._write_end(runs))

    def _write(self, ended: Ended) -> None:
        record = _present(self._record(ended))
        self._id = self.recorder.write_turn(self._id, self._records == 0, record)
        self._records += 1
        self._runs = (*self._runs, *ended.runs)[:MAX_RUNS]
        if not ended.counted or self._finished:
            self._say_uncounted(ended)
            return
        joined = join(self._last, ended)
        if self._last is None:
            self._arrival_s = self.recorder.offset_s(ended.sent_s)
        else:
            gap_s = max(0.0, ended.sent_s - self._last.finish_s)
            self.recorder.write_trace(self._lines(self._runs, gap_s, joined.carried_tokens))
        self._last, self._joined, self._runs = ended, joined, ()

    def _write_end(self, runs: Sequence[ToolRun]) -> None:
        if self._last is not None:
            self.recorder.write_trace([*self._lines((*self._runs, *runs), None, None), end_line(self._id)])
            self._last = None

    def _lines(self, runs: Sequence[ToolRun], gap_s: float | None, carried: int | None) -> list[dict[str, Any]]:
        """The last turn's line, now that what followed it is known; before it the program's, if it is the first."""
        assert self._last is not None
        calls = calls_after(self._last, runs, self.recorder.tool_key)
        turn = turn_of(self._last, self._joined, calls, gap_s, carried)
        lines = [turn_line(self._id, self._turns, turn)]
        if self._turns == 0:
            program = Program(
                self._id,
                (),
                source=self.recorder.source,
                model=self._last.reply.model,
                arrival_s=self._arrival_s,
                parent_id=self._parent_id,
            )
            lines.insert(0, program_line(program))
        self._turns += 1
        return lines

    def _record(self, ended: Ended) -> TurnRecord:
        reply, at = ended.reply, self.recorder.offset_s
        return TurnRecord(
            program_id=self._id,
            turn=self._records,
            due_s=at(ended.sent_s),
            sent_s=at(ended.sent_s),
            first_token_s=None if reply.first_token_s is None else at(reply.first_token_s),
            finish_s=at(ended.finish_s),
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            tools=tuple(key_of(tool, self.recorder.tool_key) for tool in reply.asked),
            is_last=ended.is_last,
            error=ended.error,
            turn_id=ended.turn_id,
        )

    def _say_uncounted(self, ended: Ended) -> None:
        if ended.error is None and not ended.counted:
            message = (
                "a server gave no token counts: such turns are in turns.jsonl and not in trace.jsonl. "
                'A stream read raw has them where it was sent with stream_options={"include_usage": True}'
            )
            once.warn(f"uncounted {self.recorder.path}", f"{self.recorder.path}: {message}")


_recorders: dict[str, Recorder] = {}
_recorders_lock = threading.Lock()


def recorder_at(path: str | os.PathLike[str], content: Content) -> Recorder:
    """The process's recorder of a directory: clients that record to one place share it.

    Raises:
        ValueError: the directory is recorded with another ``content`` already, or an unknown one.
    """
    key = str(Path(path).absolute())
    with _recorders_lock:
        known = _recorders.get(key)
        if known is None:
            known = _recorders[key] = Recorder(path, content)
        elif known.content != content:
            raise ValueError(f"{path}: recorded with content={known.content!r} already, not {content!r}")
        return known


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_RECORD_FIELDS = tuple(field.name for field in fields(TurnRecord))


def _line(data: Mapping[str, Any]) -> bytes:
    return _encode(data).encode("utf-8", "replace") + b"\n"


def _present(record: TurnRecord) -> dict[str, Any]:
    """As ``run_dir.compact``, for every call there is: a third of its time."""
    values = ((name, getattr(record, name)) for name in _RECORD_FIELDS)
    return {name: value for name, value in values if value is not None and value != ()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
