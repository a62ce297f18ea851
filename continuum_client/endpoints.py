"""Remember the dialect of the server at each base URL, and the fields that it refuses. All clients share one table."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from continuum_client.dialects import AUTO, BY_HOST, BY_OWNER, HEADERS, Dialect, owner_of
from continuum_client.errors import once

Feature = Literal["extension", "stream_usage"]
"""A part of requests that can be left out: the dialect's body fields, or the ``stream_options`` of the recorder."""


@dataclass(slots=True)
class _Server:
    dialect: Dialect | None = None
    """The dialect that ``auto`` chose; None: not known yet."""
    probing: bool = False
    """Whether a caller asks the server now, or has asked it."""
    dropped: frozenset[tuple[str, Feature]] = frozenset()
    """The features that the server refused, each with the model of the call."""


class Endpoints:
    """The servers by their base URL."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._lock = threading.Lock()

    def accepts(self, url: str, model: str, feature: Feature) -> bool:
        """Whether the server at ``url`` has never refused ``feature`` in a call of ``model``."""
        server = self._servers.get(url)
        return server is None or (model, feature) not in server.dropped

    def drop(self, url: str, model: str, features: Iterable[Feature], names: Iterable[str]) -> None:
        """Leave out ``features`` of calls of ``model`` from now on, because the server at ``url`` refused the fields
        ``names``. Warn once. Behind a gateway other models may accept them."""
        with self._lock:
            server = self._servers.setdefault(url, _Server())
            server.dropped |= {(model, feature) for feature in features}
        once.warn(
            f"refused {url} {model} {sorted(features)}",
            f"{shown(url)} refuses {', '.join(sorted(names))} for model {model}: from now on its calls are sent "
            'without these body fields (headers are still sent). dialect="headers" never sends body fields.',
        )

    def dialect_of(self, wanted: Dialect, url: str) -> Dialect:
        """Return ``wanted``; for ``auto`` the dialect of the server at ``url``, or ``auto`` if it has not answered."""
        if wanted is not AUTO:
            return wanted
        server = self._servers.get(url)
        answered = None if server is None else server.dialect
        return answered or BY_HOST.get(urlsplit(url).hostname or "", AUTO)

    def begin_probe(self, url: str) -> bool:
        """Return whether the caller should ask the server. Other callers use ``headers`` until the server answers."""
        with self._lock:
            server = self._servers.setdefault(url, _Server())
            first, server.probing = not server.probing, True
            return first

    def abandon_probe(self, url: str) -> None:
        """Let a later call ask the server, because this one could not."""
        with self._lock:
            self._servers[url].probing = False

    def end_probe(self, url: str, models: Any) -> Dialect:
        """Store and return the dialect of the owner in the server's model list; ``headers`` if the owner is unknown."""
        dialect = BY_OWNER.get(_owner(models), HEADERS)
        with self._lock:
            self._servers.setdefault(url, _Server()).dialect = dialect
        return dialect


def _owner(models: Any) -> str:
    data = models.get("data") if isinstance(models, Mapping) else None
    first = data[0] if isinstance(data, list) and data else None
    return owner_of(first) if isinstance(first, Mapping) else ""


def shown(url: str) -> str:
    """Return a base URL without user, password and query, for messages."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def named_in(text: str, names: Iterable[str]) -> list[str]:
    """Return the ``names`` that occur as whole words in a server's error message."""
    return [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


endpoints = Endpoints()
"""The table that all clients of the process share."""
