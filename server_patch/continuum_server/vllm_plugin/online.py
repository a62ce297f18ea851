"""The parts of the plugin that only a live server has: clock, record, counters, reading of outputs, HTTP answers.

They run in the engine core's process. The HTTP side (``middleware``) calls them through vLLM's utility calls, which the
engine core answers between two steps. So no lock is needed, and no other thread accesses the scheduler's state.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continuum_traces.json_io import RunDirError
from continuum_traces.schema import SchedulerEvent

from continuum_server.policy.base import Policy
from continuum_server.policy.facts import ProgramState, ToolEvent
from continuum_server.policy.pins import Pin
from continuum_server.policy.programs import name_of
from continuum_server.vllm_plugin import kv_groups, touch_points
from continuum_server.vllm_plugin.metrics import Metrics
from continuum_server.vllm_plugin.middleware import UTILITY
from continuum_server.vllm_plugin.output_tools import OutputTools
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.recorder import EventRecorder
from continuum_server.vllm_plugin.state import LISTED
from continuum_server.vllm_plugin.statistics_files import StatisticsFile

if TYPE_CHECKING:
    from continuum_server.vllm_plugin.scheduler import ProgramSchedulerMixin

logger = logging.getLogger("continuum")

SCANNED = 10_000
"""Number of programs among which those of one API key are looked for: 3 ms of the engine's time."""

after_release: list[Callable[[str], None]] = []
"""Functions in this process that are called with the id of each program that its client releases."""


class AnchoredClock:
    """Returns seconds since the epoch, without jumps: reads the wall clock once, and then the monotonic clock."""

    def __init__(self) -> None:
        self._monotonic = time.monotonic  # noqa: TID251 - the server's clock is made here
        self._offset_s = time.time() - self._monotonic()  # noqa: TID251

    def __call__(self) -> float:
        return self._offset_s + self._monotonic()


class Online:
    """The plugin's part in a live engine, which is also the sink of the scheduler's events.

    Args:
        scheduler: its clock, sink and readers of outputs are set.
        settings: only ``record_path``, ``statistics_path`` and ``tool_parser`` are used, and shown in the state.
    """

    def __init__(self, scheduler: ProgramSchedulerMixin, settings: Settings) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._metrics = Metrics()
        self._clock = AnchoredClock()
        self._recorder = self._make_recorder()
        self._statistics = StatisticsFile(self._statistics_path(), scheduler.table.policy, self._clock)
        outputs = OutputTools(scheduler.vllm_config, settings.tool_parser, scheduler.table.policy.first_words)
        scheduler.attach(self._clock, self, outputs, outputs.stop_string)
        if self._recorder is not None:
            scheduler.table.identity.programs.resume_turns(self._recorder.resumed.turn_numbers)
            self._recorder.settle(self._clock())
        self._statistics.load()
        touch_points.add_utility(UTILITY, self.call)
        atexit.register(self.close)

    # ------------------------------------------------------------------------------------ sink

    def write(self, event: SchedulerEvent) -> None:
        """Count and record one event. Must not raise."""
        self._metrics.count(event)
        if self._recorder is not None:
            self._recorder.write(event)
        if event.event == "finish":
            self._statistics.save_when_due(event.t)

    def learns(self, policy: Policy) -> None:
        """Save this policy's statistics from now on. It starts with the statistics that were saved last."""
        self._statistics.policy = policy
        self._statistics.load()

    def close(self) -> None:
        """Release all pins and write all files. May be called again."""
        self._scheduler.release_all("shutdown")
        if self._recorder is not None:
            self._recorder.close()
        self._statistics.close()

    # ------------------------------------------------------------------------------------ HTTP

    def call(self, operation: str, argument: str) -> str:
        """Answer the HTTP side as JSON: return the ``state``, ``release`` a program, take a tool's ``event``, or count
        tags (``reject``).

        Never raises an exception.
        """
        try:
            return json.dumps(self._answer(operation, json.loads(argument or "{}")))
        except Exception as error:  # noqa: BLE001 - a request must not end the engine
            logger.warning("continuum: %.64r of %.64r was not answered: %r", operation, argument, error)
            return json.dumps({"error": f"{type(error).__name__}: {error}"})

    def _answer(self, operation: str, argument: dict[str, Any]) -> dict[str, Any]:
        if operation == "state":
            return self.snapshot(argument.get("namespace"))
        if operation == "release":
            program_id = argument["program_id"]
            released = self._scheduler.release_program(program_id, argument.get("namespace"))
            for tell in after_release:
                tell(program_id)
            return {"released": released}
        if operation == "event":
            event = ToolEvent(**argument["event"])
            return {"held": self._scheduler.tool_event(argument["program_id"], argument.get("namespace"), event)}
        if operation == "reject":
            self._scheduler.tags.note_rejected([str(name) for name in argument["names"]], int(argument["count"]))
            return {}
        raise ValueError(f"unknown operation {operation!r}")

    def snapshot(self, namespace: str | None = None) -> dict[str, Any]:
        """Return programs, pins, estimates and counters, from which ``state.engine_state`` makes the state.

        Args:
            namespace: only programs, pins and tools of this API key are listed. The numbers always cover all programs.
        """
        scheduler = self._scheduler
        table, now_s = scheduler.table, self._clock()
        scheduler.held.release_expired(now_s)
        estimates = table.policy.state()
        prefix = name_of("", namespace)
        return {
            "policy": table.policy.name,
            "policy_options": self._settings.policy_options,
            "guards": asdict(table.guards),
            "now_s": now_s,
            "pins": _rows((pin for pin in table.pins.values() if not pin.soft), namespace),
            "soft_holds": _rows(table.pins.soft, namespace),
            "pins_held": sum(not pin.soft for pin in table.pins.values()),
            "pinned_tokens": table.pins.kept_tokens,
            "pinned_blocks": table.pins.block_count,
            "longest_wait_s": self._metrics.longest_wait_s(now_s),
            "kv_groups": kv_groups.described(scheduler),
            "turns_not_findable": scheduler.turns_not_findable,
            "guarded_blocks": scheduler.guard.block_count,
            "free_blocks": touch_points.free_block_count(scheduler),
            "evictable_blocks": touch_points.free_block_count(scheduler) + scheduler.held.soft_blocks,
            "pool_blocks": kv_groups.pool_blocks(scheduler),
            "programs": len(table.identity.programs),
            "programs_fitting": table.fitting.programs,
            "program_list": self._program_rows(namespace),
            "keys": table.tenants.rows(now_s),
            "recognised_by": dict(+table.identity.programs.recognised),
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
            "tools": {
                tool.removeprefix(prefix): count
                for tool, count in table.policy.tool_counts().items()
                if tool.startswith(prefix)
            },
            "gauges": {
                name: {"value": estimates[name], "help": text}
                for name, text in table.policy.gauges.items()
                if name in estimates
            },
            "metrics": self._metrics.to_json(),
            "tags_rejected": scheduler.tags.rejected,
            "hints_ignored": dict(scheduler.tags.ignored),
            "plugin_errors": scheduler.wall.errors,
            "record_events_dropped": self._recorder.dropped if self._recorder else 0,
        }

    def _program_rows(self, namespace: str | None) -> list[tuple[Any, ...]]:
        """Return the programs that run, those that wait, those whose KV is held, others, and a few that have ended."""
        programs = islice(self._scheduler.table.programs(), SCANNED)
        shown = (program for program in programs if namespace is None or program.namespace == namespace)
        return [self._program_row(program, namespace) for program in islice(shown, LISTED)]

    def _program_row(self, program: ProgramState, namespace: str | None) -> tuple[Any, ...]:
        """Return the values of ``PROGRAM_ROW``."""
        scheduler, turn, key = self._scheduler, program.turn, program.program_id
        pin = scheduler.table.pins.get(key)
        request = scheduler.requests.get(turn.request_id) if turn is not None else None
        since_s = turn.since_s if turn is not None else pin.since_s if pin is not None else program.last_finish_s
        return (
            program.name.removeprefix(name_of("", namespace)),
            program.recognised_by,
            program.turns_arrived,
            program.context_tokens if request is None else request.num_tokens,
            _state_of(program, pin),
            since_s,
            None if pin is None else pin.deadline_s,
            program.hit_share,
            None if program.family is None else program.family.name.removeprefix(name_of("", namespace)),
            None if program.last_prompt.left is None else astuple(program.last_prompt.left),
        )

    # ----------------------------------------------------------------------------- files

    def _make_recorder(self) -> EventRecorder | None:
        preview = os.environ.get("RUN_OUTPUT_DIR") or None
        folder = self._settings.record_path or preview
        if not folder:
            return None
        try:
            return EventRecorder(self._folder_of_rank(folder), preview and self._folder_of_rank(preview))
        except RunDirError as error:
            logger.warning("continuum: no record is kept: %s", error)
            return None

    def _folder_of_rank(self, folder: str | Path) -> Path:
        rank = touch_points.data_parallel_rank(self._scheduler)
        return Path(folder) / f"rank{rank}" if rank else Path(folder)

    def _statistics_path(self) -> Path | None:
        path = self._settings.statistics_path
        rank = touch_points.data_parallel_rank(self._scheduler)
        return None if path is None else Path(f"{path}.rank{rank}" if rank else path)


def _state_of(program: ProgramState, pin: Pin | None) -> str:
    """Return ``running``, ``waiting``, ``held``, ``soft`` (a soft hold), ``idle`` (nothing is held) or ``ended``."""
    if program.turn is not None:
        return "running" if program.turn.running else "waiting"
    if pin is not None:
        return "soft" if pin.soft else "held"
    return "ended" if program.ended else "idle"


def _rows(pins: Iterable[Pin], namespace: str | None) -> list[tuple[Any, ...]]:
    """Return the values of ``PIN_ROW`` of the key's pins."""
    prefix = name_of("", namespace)
    shown = (pin for pin in pins if namespace is None or pin.program.namespace == namespace)
    return [
        (pin.program.name.removeprefix(prefix), pin.turn_index, pin.kept_tokens, pin.since_s, pin.deadline_s)
        for pin in islice(shown, LISTED)
    ]
