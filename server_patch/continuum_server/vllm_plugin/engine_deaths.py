"""What clients get when the process of one of vLLM's engines dies: an error at once, or their engine's whole answer.

If an engine dies, vLLM stops the other engines, and closes its connections to them even while they finish requests. It
does not end these requests: each one waits until its client gives up, and the server waits for all of them. This module
ends the requests of the dead engine with an error at once. The other engines may finish theirs until the time to drain
(``--shutdown-timeout``) is over. Then the rest ends with an error too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from continuum_server.log_once import LogOnce

logger = logging.getLogger("continuum")

LOOKS, LOOK_S = 100, 0.02
"""How often, and after how many seconds each time, the last outputs of stopped engines are looked for."""
REAP_S = 5.0


class EngineDeaths:
    """Changes a vLLM client (``AsyncLLM``) in place, so that no request outlives its engine.

    Args:
        client: the ``AsyncLLM`` whose engines are watched. With several API servers their parent process starts the
            engines, so that a client has none to watch.
        loop: the event loop of its requests.
        draining: set when an engine died, from which time on new requests are refused.
    """

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop, draining: threading.Event) -> None:
        self._client, self._loop, self._draining = client, loop, draining
        self._stopping = threading.Lock()
        self._warn = LogOnce()
        self._core: Any = getattr(client, "engine_core", None)
        self._processor: Any = getattr(client, "output_processor", None)
        self._manager: Any = getattr(getattr(self._core, "resources", None), "engine_manager", None)
        manager: Any = self._manager
        if hasattr(manager, "processes"):  # engines on Ray have no processes of ours
            self._stop_engines: Callable[[float | None], None] = manager.shutdown
            manager.shutdown = self._stop

    def fail_all(self) -> None:
        """Fail all requests. From any thread."""
        self._in_loop(lambda request_id: True)

    def _stop(self, timeout: float | None = None) -> None:
        """Stop the engines, in place of vLLM's ``shutdown``. A second thread waits here until the first is done, and
        only then closes the connections."""
        with self._stopping:
            dead = {} if self._draining.is_set() else self._dead()
            if not dead:
                self._stop_engines(timeout)
                return
            self._draining.set()
            limit_s = self._client.vllm_config.shutdown_timeout
            which = ", ".join(f"{name} (exit code {code})" for name, code in dead.items())
            logger.error("continuum: vLLM's %s died; its requests fail, others have %g s", which, limit_s)
            self._attempt(lambda: self._fail_requests_of(dead))
            self._stop_engines(max(timeout or 0.0, limit_s))
            self._attempt(self._hand_out)

    def _dead(self) -> dict[str, int]:
        """Return the exit code of each engine that died, by the name of its process."""
        processes = {process.sentinel: process for process in self._manager.processes}
        ended = [processes[sentinel] for sentinel in connection.wait(processes, timeout=0.0)]
        for process in ended:
            process.join(REAP_S)  # its sentinel is there a moment before its exit code
        return {process.name: process.exitcode for process in ended if process.exitcode}

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - vLLM must stop its engines
            self._warn("death", "requests of a dead engine may wait until their clients give up", error=error)

    def _fail_requests_of(self, dead: Iterable[str]) -> None:
        engine_of = getattr(self._core, "reqs_in_flight", None)
        if engine_of is None:  # there is one engine
            self.fail_all()
            return
        identities = {int(name.rpartition("DP")[2]).to_bytes(2, "little") for name in dead}
        self._in_loop(lambda request_id: engine_of.get(request_id) in identities)

    def _hand_out(self) -> None:
        """Wait until the last outputs of the stopped engines reached their requests, and fail the other requests."""
        if threading.current_thread() is not threading.main_thread():  # where the event loop runs
            asyncio.run_coroutine_threadsafe(self._all_ended(), self._loop).result()
        self.fail_all()

    async def _all_ended(self) -> None:
        for _ in range(LOOKS):
            if not self._processor.request_states:
                return
            await asyncio.sleep(LOOK_S)

    def _in_loop(self, concerned: Callable[[str], bool]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no request waits
            self._loop.call_soon_threadsafe(self._fail, concerned)

    def _fail(self, concerned: Callable[[str], bool]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415 - the middleware itself needs no vLLM

        states = getattr(self._processor, "request_states", {})
        for request_id in [*filter(concerned, states)]:
            state = states.pop(request_id)
            if state.queue is not None:
                state.queue.put(EngineDeadError())
