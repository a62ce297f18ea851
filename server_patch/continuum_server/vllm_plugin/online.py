"""What a live server has beside the scheduler: a clock, a record, counters, the tool a turn calls, questions from HTTP.

Lives in the engine core's process. The HTTP side (``middleware``) asks through vLLM's own utility calls, which the
engine core answers between two steps: no lock, no second thread on the scheduler's state.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import RunDirError, read_json, write_json
from continuum_traces.schema import SchedulerEvent

from continuum_server.recorder import Recorder
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.metrics import Metrics
from continuum_server.vllm_plugin.middleware import UTILITY
from continuum_server.vllm_plugin.output_tools import OutputTools
from continuum_server.vllm_plugin.request_tags import program_key
from continuum_server.vllm_plugin.settings import Settings

logger = logging.getLogger("continuum")

STATISTICS_EVERY_S = 30.0


class AnchoredClock:
    """Seconds since the epoch that never jump: the wall clock once, the monotonic clock from then on."""

    def __init__(self) -> None:
        self._monotonic = time.monotonic  # noqa: TID251 - this is where the server's clock comes from
        self._offset_s = time.time() - self._monotonic()  # noqa: TID251

    def __call__(self) -> float:
        return self._offset_s + self._monotonic()


class Online:
    """A live engine's side of the plugin; the scheduler's event sink.

    Args:
        scheduler: a ``ProgramSchedulerMixin``.
        settings: ``record_path`` (a folder) and ``statistics_path`` are used here.
    """

    def __init__(self, scheduler: Any, settings: Settings) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._metrics = Metrics()
        self._clock = AnchoredClock()
        self._recorder = self._make_recorder()
        self._statistics_due_s = self._clock() + STATISTICS_EVERY_S
        scheduler.attach(self._clock, self)
        scheduler.output_tool = OutputTools(scheduler.vllm_config, settings.tool_parser)
        if self._recorder is not None:
            scheduler.core.resume_turns(self._recorder.resumed.next_turn)
            self._recorder.settle(self._clock())
        self._load_statistics()
        touch_points.add_utility(UTILITY, self.call)
        atexit.register(self.close)

    # ------------------------------------------------------------------------------------ sink

    def write(self, event: SchedulerEvent) -> None:
        """One event of the scheduler. Must not raise."""
        self._metrics.count(event)
        if self._recorder is not None:
            self._recorder.write(event)
        if event.t >= self._statistics_due_s and event.event == "finish":
            self._statistics_due_s = event.t + STATISTICS_EVERY_S
            self._save_statistics()

    def close(self) -> None:
        """At shutdown: end the pins, write everything; safe to call twice."""
        self._scheduler.release_all("shutdown")
        if self._recorder is not None:
            self._recorder.close()
        self._save_statistics(wait=True)

    # ------------------------------------------------------------------------------------ HTTP

    def call(self, operation: str, argument: str) -> str:
        """Answer the HTTP side, as JSON: ``state``, ``release`` of a program, or ``reject`` of malformed tags.

        Never raises: what is asked comes from a process that may be of another version.
        """
        try:
            return json.dumps(self._answer(operation, json.loads(argument or "{}")))
        except Exception as error:  # noqa: BLE001 - the engine is not ours to fail
            logger.warning("continuum: %.64r of %.64r was not answered: %r", operation, argument, error)
            return json.dumps({"error": f"{type(error).__name__}: {error}"})

    def _answer(self, operation: str, argument: dict[str, Any]) -> dict[str, Any]:
        if operation == "state":
            return self.state(argument.get("namespace"))
        if operation == "release":
            return {"released": self._scheduler.release_program(argument["program_id"], argument.get("namespace"))}
        if operation == "reject":
            self._scheduler.note_rejected([str(name) for name in argument["names"]], int(argument["count"]))
            return {}
        raise ValueError(f"unknown operation {operation!r}")

    def state(self, namespace: str | None = None) -> dict[str, Any]:
        """What is held and what is believed; ids, numbers and tool names, no prompt text.

        Pins are those of one namespace, where it is given; all other numbers are of everybody's programs together.
        """
        scheduler = self._scheduler
        core, now_s = scheduler.core, self._clock()
        scheduler.release_expired()
        policy = core.policy.state()
        prefix = program_key("", namespace)
        return {
            "policy": core.policy.name,
            "policy_options": self._settings.policy_options,
            "guards": asdict(core.guards),
            "now_s": now_s,
            "pins": [
                {
                    "program_id": key.removeprefix(prefix),
                    "turn": pin.turn_index,
                    "tokens": pin.tokens,
                    "since_s": pin.since_s,
                    "expires_in_s": pin.deadline_s - now_s,
                }
                for key, pin in core.pins.items()
                if key.startswith(prefix)
            ],
            "pinned_tokens": core.pinned_tokens,
            "pinned_blocks": core.pinned_tokens // scheduler.block_size,
            "free_blocks": touch_points.free_block_count(scheduler),
            "programs": core.program_count,
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
            "delay_s": policy.get("delay_s"),
            "eta": policy.get("eta"),
            "tools": policy.get("tools", {}),
            "programs_inside": policy.get("programs_inside"),
            "programs_outside": policy.get("programs_outside"),
            "metrics": self._metrics.to_json(),
            "tags_rejected": scheduler.tags_rejected,
            "record_events_dropped": self._recorder.dropped if self._recorder else 0,
        }

    # ----------------------------------------------------------------------------- files

    def _make_recorder(self) -> Recorder | None:
        preview = os.environ.get("RUN_OUTPUT_DIR") or None
        folder = self._settings.record_path or preview
        if not folder:
            return None
        try:
            return Recorder(self._folder_of_rank(folder), preview and self._folder_of_rank(preview))
        except RunDirError as error:
            logger.warning("continuum: no record is kept: %s", error)
            return None

    def _folder_of_rank(self, folder: str | Path) -> Path:
        rank = touch_points.data_parallel_rank(self._scheduler)
        return Path(folder) / f"rank{rank}" if rank else Path(folder)

    def _statistics_file(self) -> Path | None:
        path = self._settings.statistics_path
        rank = touch_points.data_parallel_rank(self._scheduler)
        return None if path is None else Path(f"{path}.rank{rank}" if rank else path)

    def _load_statistics(self) -> None:
        path = self._statistics_file()
        if path is None or not path.exists():
            return
        try:
            self._scheduler.core.policy.import_statistics(read_json(path))
            logger.info("continuum: statistics from %s", path)
        except (RunDirError, ValueError, KeyError, TypeError) as error:
            logger.warning("continuum: statistics not loaded: %s", error)

    def _save_statistics(self, wait: bool = False) -> None:
        path = self._statistics_file()
        statistics = self._scheduler.core.policy.export_statistics()
        if path is None or not statistics:
            return
        write = threading.Thread(target=_write_statistics, args=(path, statistics), name="continuum-statistics")
        write.start()
        if wait:
            write.join()


def _write_statistics(path: Path, statistics: dict[str, Any]) -> None:
    try:
        write_json(path, statistics)
    except RunDirError as error:
        logger.warning("continuum: statistics not saved: %s", error)
