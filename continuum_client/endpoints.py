"""What each base URL turned out to accept. One table for the process, since a server is the same for every client."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from continuum_client.dialects import BY_HOST, BY_OWNER, HEADERS, Dialect
from continuum_client.errors import once

Feature = Literal["extension", "stream_usage"]
"""What can be dropped: our body fields; ``stream_options`` that the recorder adds."""


@dataclass(slots=True)
class _Known:
    dialect: Dialect | None = None
    """What ``auto`` found; None: not yet."""
    probing: bool = False
    dropped: frozenset[str] = frozenset()


class Endpoints:
    """By base URL: the dialect found, the features its server refused."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def accepts(self, url: str, feature: Feature) -> bool:
        known = self._known.get(url)
        return known is None or feature not in known.dropped

    def drop(self, url: str, features: Iterable[Feature], names: Iterable[str]) -> None:
        """The server at ``url`` refused ``names``: leave the features out from now on, and say so once."""
        with self._lock:
            known = self._known.setdefault(url, _Known())
            known.dropped |= set(features)
        once.warn(
            f"refused {url} {sorted(features)}",
            f"{_shown(url)} refuses {', '.join(sorted(names))}: left out from now on (headers are still sent). "
            'dialect="headers" sends no body fields.',
        )

    def found(self, url: str) -> Dialect | None:
        """The dialect ``auto`` has settled on; None: nobody has asked the server yet."""
        known = self._known.get(url)
        if known is not None and known.dialect is not None:
            return known.dialect
        return BY_HOST.get(urlsplit(url).hostname or "")

    def begin_probe(self, url: str) -> bool:
        """True for the one caller that is to ask the server; the others use headers meanwhile."""
        with self._lock:
            known = self._known.setdefault(url, _Known())
            first, known.probing = not known.probing, True
            return first

    def abandon_probe(self, url: str) -> None:
        """The server could not be asked: let another call try."""
        with self._lock:
            self._known[url].probing = False

    def end_probe(self, url: str, models: Any) -> Dialect:
        """What the server's model list says about it; anything unknown gives headers."""
        dialect = BY_OWNER.get(_owner(models), HEADERS)
        with self._lock:
            self._known.setdefault(url, _Known()).dialect = dialect
        return dialect

    def forget(self) -> None:
        """Ask and try everything again."""
        with self._lock:
            self._known.clear()


def _owner(models: Any) -> str:
    data = models.get("data") if isinstance(models, Mapping) else None
    first = data[0] if isinstance(data, list) and data else None
    owner = first.get("owned_by") if isinstance(first, Mapping) else None
    return owner if isinstance(owner, str) else ""


def _shown(url: str) -> str:
    """A base URL without user, password and query."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def named_in(text: str, names: Iterable[str]) -> list[str]:
    """Which of ``names`` a server's complaint mentions, as whole words."""
    return [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


endpoints = Endpoints()
"""The process's."""
