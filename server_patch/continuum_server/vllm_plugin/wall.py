"""Catch exceptions in the plugin's hooks, so that they do not end vLLM's engine.

vLLM calls the plugin's hooks in its engine loop, where an exception would end the server. So each hook is called
through this module: an exception is counted and logged once, and the KV that is held for its program is released.
In the virtual engine an exception ends the run, because a policy that fails has no result.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from continuum_server.log_once import LogOnce
from continuum_server.vllm_plugin.versions import PluginError

P = ParamSpec("P")
T = TypeVar("T")


class PolicyFailed(PluginError):
    """A hook raised an exception in the virtual engine."""


class Wall:
    """Runs hooks and catches their exceptions.

    Args:
        recover: called after a failure with the request's id, or with None if no single request is concerned. It must
            release the KV that is held for the request's program.
        start_over: called if ``recover`` fails too. It must release all held KV.
        catches: False: an exception ends the run as a ``PolicyFailed``.
    """

    def __init__(
        self, recover: Callable[[str | None], None], start_over: Callable[[], None], catches: bool = True
    ) -> None:
        self.errors = 0
        """Number of exceptions caught so far."""
        self._catches = catches
        self._recover = recover
        self._start_over = start_over
        self._warn = LogOnce()

    def run(
        self, hook: str, request_id: str | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Return the result of ``function``. If it raises an exception, call ``recover`` and return None."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the engine must continue
            self.note(hook, error)
        try:
            self._recover(request_id)
        except Exception as error:  # noqa: BLE001 - as above
            self.note(f"{hook}, recovery", error)
            self._start_over()
        return None

    def attempt(self, hook: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of ``function``. An exception is only counted and logged, without recovery."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - as above
            self.note(hook, error)
            return None

    def note(self, hook: str, error: Exception) -> None:
        if not self._catches:
            raise error if isinstance(error, PolicyFailed) else PolicyFailed(_described(hook, error)) from error
        self.errors += 1
        self._warn((hook, type(error)), "%s failed; vLLM goes on without it (logged once)", hook, error=error)


def _described(hook: str, error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"the policy failed at '{hook}': {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
