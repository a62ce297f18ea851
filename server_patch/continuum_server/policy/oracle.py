"""The future, for bounds: policies that no server can run, as yardsticks for those that it can."""

from __future__ import annotations

from typing import Protocol


class Oracle(Protocol):
    """What the virtual engine knows from the trace. Requests are named by id: program ids may repeat."""

    def tool_s(self, request_id: str) -> float:
        """Seconds from that request's finish to its program's next arrival."""
        ...

    def remaining_s(self, request_id: str) -> float:
        """Model seconds of that request and all that follow in its program, alone on the machine."""
        ...

    def work_s(self, request_id: str) -> float:
        """Engine seconds they take in a full batch: prefill alone, of decode steps the share of their context."""
        ...

    def work_after_s(self, request_id: str) -> float:
        """The same of those that follow."""
        ...
