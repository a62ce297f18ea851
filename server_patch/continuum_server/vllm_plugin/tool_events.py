"""The body of ``POST /continuum/programs/{id}/events``: what a client says of a tool while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Annotated, Literal

import msgspec
from continuum_traces.wire import MAX_HINT_S

from continuum_server.policy.facts import ToolEvent

MOST_BYTES = 4096
"""Longest body that is read."""
FORMS = 'send {"event": "started", "pred_tool_s": SECONDS} or {"event": "finished"}'

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_HINT_S)]


class BadEvent(ValueError):
    """A body is no event. The message names the field.

    Args:
        status: the HTTP status of the refusal.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Sent(msgspec.Struct, forbid_unknown_fields=True):
    event: Literal["started", "finished"]
    pred_tool_s: Seconds | None = None
    pred_tool_p90_s: Seconds | None = None


async def read_event(body: AsyncIterable[bytes]) -> ToolEvent:
    """Read an event from the parts of a request's body.

    Raises:
        BadEvent: it is too long, or is none.
    """
    whole = b""
    async for part in body:
        whole += part
        if len(whole) > MOST_BYTES:
            raise BadEvent(f"the body is longer than {MOST_BYTES} bytes; {FORMS}", 413)
    try:
        sent = msgspec.json.decode(whole, type=_Sent)
    except msgspec.DecodeError as error:  # of which the errors of types are a kind
        raise BadEvent(f"{error}; {FORMS}") from None
    if sent.event == "finished" and (sent.pred_tool_s, sent.pred_tool_p90_s) != (None, None):
        raise BadEvent(f"pred_tool_s, pred_tool_p90_s: a tool that has finished takes no more seconds; {FORMS}")
    if sent.event == "started" and sent.pred_tool_s is None:
        raise BadEvent(f"pred_tool_s: missing, so the event says nothing new; {FORMS}")
    return ToolEvent(sent.pred_tool_s, sent.pred_tool_p90_s)
