"""Record programs while they run, in a run directory that ``continuum-bench`` can read.

``turns.jsonl``    one ``TurnRecord`` for each call, written when its reply has ended
``trace.jsonl``    the programs as a trace (docs/trace-format.md). A turn is written when its reply has ended, and the
                   gap after it when the program's next turn or the program ends
``manifest.json``  versions

Several processes may write to one directory. The memory holds one turn for each open program, and a hash of each
program's id.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from continuum_traces.appender import SharedLines
from continuum_traces.json_io import compact
from continuum_traces.programs.lines import encoded, end_line, gap_line, header_line, program_line, turn_line
from continuum_traces.records.run_dir import MANIFEST, TURNS, write_manifest
from continuum_traces.schema import Manifest, Metadata, Program, TurnRecord
from continuum_traces.shell import first_program

from continuum_client.ending import do_what_is_left
from continuum_client.errors import once
from continuum_client.reply import Content, check_content
from continuum_client.tools import MAX_RUNS, ToolRun
from continuum_client.turns import EndedCall, Join, calls_after, join, key_of, turn_of
from continuum_client.version import version_of

TRACE = "trace.jsonl"

Clock = Callable[[], float]


def tool_as_named(name: str, arguments: str) -> str:
    """Return the name of the tool; the default ``tool_key``."""
    return name


def tool_by_command(name: str, arguments: str) -> str:
    """Return the program that the argument ``command`` of a tool runs, or else the name of the tool; a ``tool_key``.

    The server names tools in the same way. With ``content="none"`` the arguments are unknown, and the result is
    ``name``.
    """
    try:
        return first_program(json.loads(arguments)["command"]) or name
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return name


class Recorder:
    """Records programs in a run directory. If a write fails, the recorder warns once and stops; the agent goes on.

    Args:
        path: the directory. If it exists, records are added; otherwise it is made.
        content: ``none``: numbers and tool names only. ``digest``: also digests of tool arguments. ``full``: also the
            text of the answers and the tool arguments. Prompts are never written.
        source: where the programs come from; written to the trace.
        tool_key: a function from a tool's name and arguments (empty with ``none``) to the name to record.
        clock, wall: functions that return the current time in seconds: monotonic, and since the epoch.

    Raises:
        ValueError: no ``content`` has that name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        content: Content = "none",
        source: str = "continuum_client",
        tool_key: Callable[[str, str], str] = tool_as_named,
        clock: Clock = time.monotonic,  # noqa: TID251 - the default of an injected clock
        wall: Clock = time.time,  # noqa: TID251
    ) -> None:
        self.path = Path(path)
        self.content: Content = check_content(content)
        self.source = source
        self.tool_key = tool_key
        self.clock = clock
        self.off = False
        """True after a write has failed; nothing more is recorded."""
        self._files: tuple[SharedLines, ...] = ()
        self._ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
        self.by_program: weakref.WeakValueDictionary[str, Ledger] = weakref.WeakValueDictionary()
        """The latest ledger of each program id."""
        self._ids: set[int] = set()
        self._epoch_offset_s = wall() - clock()
        self._start_s = 0.0
        self.guarded(self._open)

    def ledger(self, program_id: str, parent_id: str | None, metadata: Metadata | None = None) -> Ledger:
        """Return a ledger, which records one program."""
        ledger = Ledger(self, program_id, parent_id, metadata)
        self._ledgers.add(ledger)
        self.by_program[program_id] = ledger
        return ledger

    def close(self) -> None:
        """Complete the records of all programs, and close the files. Nothing more is recorded."""
        do_what_is_left()
        for ledger in list(self._ledgers):
            ledger.cut()
        self.off = True
        files, self._files = self._files, ()
        for file in files:
            file.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def offset_s(self, at_s: float) -> float:
        """Return the seconds from the making of the directory (by any process) to ``at_s`` on this recorder's clock."""
        return round(max(0.0, at_s - self._start_s), 6)

    def guarded(self, write: Callable[[], None]) -> None:
        """Run ``write``, unless an earlier write has failed. If it fails, warn and stop recording."""
        if self.off:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001 - recording must not raise into the agent
            self.off = True
            once.warn(f"record {self.path}", f"{self.path}: nothing more is recorded, the agent goes on: {error}")

    # --------------------------------------------------------------------------------------- files

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        now_s = self._epoch_offset_s + self.clock()
        header = header_line(source=self.source, started_s=round(now_s, 6))
        self._turns = SharedLines(self.path / TURNS)
        self._trace = SharedLines(self.path / TRACE, encoded(header))
        self._start_s = self._started_s(now_s) - self._epoch_offset_s
        with self._trace:
            if not (self.path / MANIFEST).exists():
                write_manifest(self.path, self._manifest(now_s))
        self._files = (self._turns, self._trace)

    def _started_s(self, now_s: float) -> float:
        """Return when the directory was made, in seconds since the epoch, from the trace's header."""
        with (self.path / TRACE).open(encoding="utf-8") as lines:
            first = json.loads(lines.readline())
        started = first.get("started_s") if isinstance(first, dict) else None
        return float(started) if isinstance(started, int | float) else now_s

    def _manifest(self, now_s: float) -> Manifest:
        packages = {name: version_of(name) for name in ("openai", "continuum-ttl")}
        return Manifest(
            created=datetime.fromtimestamp(now_s, timezone.utc).isoformat(timespec="seconds"),
            continuum_version=packages.pop("continuum-ttl"),
            versions={"python": platform.python_version(), **packages},
            notes=("recorded by continuum_client from a running agent",),
        )

    def write_turn(self, wanted_id: str, first: bool, record: Mapping[str, Any]) -> str:
        """Write one line of turns.jsonl.

        Args:
            wanted_id: the program's id.
            first: whether this is the program's first line.
            record: the line.

        Returns:
            The id under which the program is recorded: ``wanted_id``, with ``#2`` (``#3`` ...) appended if the
            directory contains another program with that id.
        """
        with self._turns:
            program_id = self._claim(wanted_id) if first else wanted_id
            self._turns.write(encoded({**record, "program_id": program_id}))
        return program_id

    def _claim(self, wanted: str) -> str:
        """Return a program id that no other program in the directory has."""
        for line in self._turns.unread():
            self._ids.add(hash(json.loads(line)["program_id"]))
        number, program_id = 1, wanted
        while hash(program_id) in self._ids:
            number += 1
            program_id = f"{wanted}#{number}"
        self._ids.add(hash(program_id))
        return program_id

    def write_trace(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Write lines of trace.jsonl: all of them or none."""
        self._trace.append(b"".join(map(encoded, lines)))


class Latest(NamedTuple):
    """The last turn of a program in the trace."""

    program_id: str
    turn: int
    finish_s: float


class Ledger:
    """Records one program. Calls may end in any thread; turns are numbered in the order in which their calls ended."""

    def __init__(self, recorder: Recorder, program_id: str, parent_id: str | None, metadata: Metadata | None) -> None:
        self.recorder = recorder
        self.content = recorder.content
        self._metadata = metadata
        self._begin(program_id, parent_id)

    def _begin(self, program_id: str, parent_id: str | None) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._id = program_id
        self._parent_id = parent_id
        self._parent: Latest | None = None
        """The parent's latest turn when this program sent its first call."""
        self._records = 0
        self._turns = 0
        self._runs: tuple[ToolRun, ...] = ()
        """Tools that ran since the last turn of the trace. They are kept when a call fails."""
        self._last: EndedCall | None = None
        """The last turn of the trace."""
        self._line: dict[str, Any] = {}
        """The last turn's line, as it is in the trace."""
        self._joined = Join(0)
        """How the last turn's prompt continues the turn before."""
        self._under_way = 0
        """Calls whose replies have not ended."""
        self._over: Sequence[ToolRun] | None = None
        """After ``finish``: the tools that ran after the program's last call."""
        self._finished = False

    def begin_turn(self) -> None:
        """Note that a call is about to be sent; ``end_turn`` follows."""
        if os.getpid() != self._pid:  # a forked process that continues the program is recorded as another program
            self._begin(f"{self._id}~{os.getpid()}", self._id)
        parent = self.recorder.by_program.get(self._parent_id or "")
        latest = None if parent in (None, self) else parent.latest()
        with self._lock:
            self._under_way += 1
            self._parent = self._parent or latest

    def latest(self) -> Latest | None:
        """Return the program's last turn in the trace; None: it has none, has ended, or another process records it."""
        if os.getpid() != self._pid:  # its lock may have been taken when this process was forked
            return None
        with self._lock:
            return None if self._last is None else Latest(self._id, self._turns, self._last.finish_s)

    def end_turn(self, ended: EndedCall) -> None:
        """Record a call that has ended, with a reply or an error."""
        with self._lock:
            self._under_way -= 1
            self.recorder.guarded(lambda: self._write(ended))
            if self._over is not None and self._under_way <= 0:
                self._finish(self._over)

    def finish(self, runs: Sequence[ToolRun]) -> None:
        """Complete the program's record when all its replies have ended. In a forked process this has no effect.

        Args:
            runs: the tools that ran after the program's last call.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._over = runs
            if self._under_way <= 0:
                self._finish(runs)

    def cut(self) -> None:
        """Complete the program's record, without the replies that are still being received."""
        if os.getpid() == self._pid:
            with self._lock:
                self._finish(self._over or ())

    def _finish(self, runs: Sequence[ToolRun]) -> None:
        if not self._finished:
            self._finished = True
            self.recorder.guarded(lambda: self._write_end(runs))

    def _write(self, ended: EndedCall) -> None:
        self._id = self.recorder.write_turn(self._id, self._records == 0, compact(self._record(ended)))
        self._records += 1
        self._runs = (*self._runs, *ended.runs)[:MAX_RUNS]
        self._warn_of_counts(ended)
        if not ended.counted or self._finished:
            return
        joined = join(self._last, ended)
        if self._last is None:
            before = program_line(self._program(ended))
        else:
            gap_s = max(0.0, ended.sent_s - self._last.finish_s)
            before = gap_line(self._line, self._turn_line(self._last, self._runs, gap_s, joined.carried_tokens))
            self._turns += 1
        self._last, self._joined, self._runs = ended, joined, ()
        self._line = self._turn_line(ended)
        self.recorder.write_trace([before, self._line])

    def _write_end(self, runs: Sequence[ToolRun]) -> None:
        if self._last is not None:
            whole = self._turn_line(self._last, (*self._runs, *runs))
            self.recorder.write_trace([gap_line(self._line, whole), end_line(self._id)])
            self._last = None

    def _turn_line(
        self, turn: EndedCall, runs: Sequence[ToolRun] = (), gap_s: float | None = None, carried: int | None = None
    ) -> dict[str, Any]:
        """Return the trace's line for the last turn.

        Args:
            turn: the turn.
            runs: the tools that ran after the turn.
            gap_s: seconds to the next call; None: no call has followed.
            carried: output tokens of the turn that are in the next prompt; None: all of them.
        """
        calls = calls_after(turn, runs, self.recorder.tool_key)
        return turn_line(self._id, self._turns, turn_of(turn, self._joined, calls, gap_s, carried))

    def _program(self, first: EndedCall) -> Program:
        parent = self._parent
        return Program(
            self._id,
            (),
            source=self.recorder.source,
            model=first.reply.model,
            arrival_s=self.recorder.offset_s(first.sent_s),
            parent_id=self._parent_id if parent is None else parent.program_id,
            parent_turn=None if parent is None else parent.turn,
            parent_gap_s=0.0 if parent is None else round(max(0.0, first.sent_s - parent.finish_s), 6),
            metadata=self._metadata,
        )

    def _record(self, ended: EndedCall) -> TurnRecord:
        reply, at = ended.reply, self.recorder.offset_s
        return TurnRecord(
            program_id=self._id,
            turn=self._records,
            due_s=at(ended.sent_s),
            sent_s=at(ended.sent_s),
            first_token_s=None if reply.first_token_s is None else at(reply.first_token_s),
            finish_s=at(ended.finish_s),
            token_gaps_ms={} if reply.first_token_s is not None and reply.parts < 2 else None,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            cached_tokens=reply.cached_tokens,
            tools=tuple(key_of(tool, self.recorder.tool_key) for tool in reply.calls),
            is_last=bool(ended.tags.is_last_step),
            error=ended.error,
            turn_id=ended.tags.turn_id,
        )

    def _warn_of_counts(self, ended: EndedCall) -> None:
        if ended.error is None and not ended.counted:
            message = (
                "a reply has no token counts. Such turns are in turns.jsonl, but not in trace.jsonl. "
                'Streams that are read raw have token counts if sent with stream_options={"include_usage": True}'
            )
            once.warn(f"uncounted {self.recorder.path}", f"{self.recorder.path}: {message}")
        if len(ended.reply.reasons) > 1:
            message = (
                "a reply has several choices, whose tokens are counted together; trace.jsonl has their mean length"
            )
            once.warn(f"choices {self.recorder.path}", f"{self.recorder.path}: {message}")


_recorders: dict[str, Recorder] = {}
_recorders_lock = threading.Lock()


def recorder_at(path: str | os.PathLike[str], content: Content) -> Recorder:
    """Return the recorder of a directory. All clients of the process that record to a directory share its recorder.

    Raises:
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """
    key = str(Path(path).absolute())
    with _recorders_lock:
        recorder = _recorders.get(key)
        if recorder is None:
            recorder = _recorders[key] = Recorder(path, content)
        elif recorder.content != content:
            raise ValueError(f"{path}: is already recorded with content={recorder.content!r}, so not with {content!r}")
        return recorder
