"""Patch ``request()`` of openai's two client classes, for every client of the process.

With ``instrument()``, the patch sends the requests of all clients with tags. Without it, the first ``client.program()``
installs the patch too; it then only warns once if a plain openai client sends a call inside a program.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import openai

from continuum_client.call import GENERATING
from continuum_client.errors import once
from continuum_client.program import current_program

View = Callable[[Any], Any]
"""A function from an openai client to an object that sends the client's requests with tags (``sending.Tagging``)."""
_NOTHING = object()
_CLASSES: tuple[type[Any], ...] = (openai.OpenAI, openai.AsyncOpenAI)


class Hook:
    """The patch of ``openai.OpenAI.request`` and ``openai.AsyncOpenAI.request``."""

    def __init__(self) -> None:
        self.view: View | None = None
        """Returns the sender of a plain client's requests; None: they are sent without tags."""
        self._patched: dict[type[Any], tuple[Any, Any]] = {}
        """The ``request`` of each class before the patch (``_NOTHING`` if it is inherited), and the patch."""
        self._lock = threading.Lock()

    def install(self) -> None:
        """Patch the classes, if they are not patched."""
        if len(self._patched) == len(_CLASSES):
            return
        with self._lock:
            for cls in _CLASSES:
                if cls not in self._patched:
                    before = vars(cls).get("request", _NOTHING)
                    cls.request = self._requesting(cls, before)
                    self._patched[cls] = before, cls.request

    def remove(self) -> None:
        """Restore the classes. If another library has patched a class since, our patch stays but does nothing."""
        self.view = None
        with self._lock:
            for cls, (before, ours) in list(self._patched.items()):
                if vars(cls).get("request") is ours:
                    del cls.request, self._patched[cls]
                    if before is not _NOTHING:
                        cls.request = before

    def _requesting(self, cls: type[Any], before: Any) -> Callable[..., Any]:
        def plain(client: Any) -> Any:
            parent: Any = super(cls, client)
            return parent.request if before is _NOTHING else before.__get__(client, cls)  # as an attribute is bound

        @functools.wraps(cls.request)
        def request(client: Any, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            sender = self._sender(client, options)
            if sender is None:
                return plain(client)(cast_to, options, stream=stream, stream_cls=stream_cls)
            return sender._send(plain(client), cast_to, options, stream, stream_cls)

        return request

    def _sender(self, client: Any, options: Any) -> Any:
        """Return the object that sends a request; None: the request is sent unchanged."""
        if options.url not in GENERATING or hasattr(client, "_continuum"):  # our own clients tag their requests
            return None
        if self.view is not None:
            return self.view(client)
        _warn_untagged(client, options)
        return None


def _warn_untagged(client: Any, options: Any) -> None:
    program = current_program()
    if program is None:
        return
    sent = [options.headers if isinstance(options.headers, Mapping) else {}, client.default_headers]
    tagged = any(name.lower() == "x-session-id" for headers in sent for name in headers)
    if not tagged and program.id not in str(options.extra_json):
        once.warn(
            "plain client",
            f"a call inside program {program.id!r} was sent by an openai client that does not send the program's tags. "
            "Use a client of continuum_client, or wrap() the openai client, or call continuum_client.instrument().",
        )


hook = Hook()
"""The patch of this process."""
