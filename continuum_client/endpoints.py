"""What the server at each base URL accepts. All clients of the process share one table."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from continuum_client.dialects import BY_HOST, BY_OWNER, HEADERS, Dialect
from continuum_client.errors import once

Feature = Literal["extension", "stream_usage"]
"""What can be left out: the dialect's body fields; the ``stream_options`` that the recorder adds."""


@dataclass(slots=True)
class _Known:
    dialect: Dialect | None = None
    """The dialect that ``auto`` found; None: not known yet."""
    probing: bool = False
    dropped: frozenset[str] = frozenset()


class Endpoints:
    """For each base URL: the dialect of the server, and the features that the server refused."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def accepts(self, url: str, feature: Feature) -> bool:
        """False once the server at ``url`` has refused ``feature``."""
        known = self._known.get(url)
        return known is None or feature not in known.dropped

    def drop(self, url: str, features: Iterable[Feature], names: Iterable[str]) -> None:
        """Leave ``features`` out from now on, because the server at ``url`` refused the fields ``names``; warn once."""
        with self._lock:
            known = self._known.setdefault(url, _Known())
            known.dropped |= set(features)
        once.warn(
            f"refused {url} {sorted(features)}",
            f"{shown(url)} refuses {', '.join(sorted(names))}: from now on calls are sent without these body fields "
            '(headers are still sent). dialect="headers" never sends body fields.',
        )

    def found(self, url: str) -> Dialect | None:
        """The dialect of the server at ``url`` under ``auto``; None: the server has not been asked yet."""
        known = self._known.get(url)
        if known is not None and known.dialect is not None:
            return known.dialect
        return BY_HOST.get(urlsplit(url).hostname or "")

    def begin_probe(self, url: str) -> bool:
        """True for the one caller that shall ask the server; the others use ``headers`` until the answer is there."""
        with self._lock:
            known = self._known.setdefault(url, _Known())
            first, known.probing = not known.probing, True
            return first

    def abandon_probe(self, url: str) -> None:
        """The server could not be asked; a later call tries again."""
        with self._lock:
            self._known[url].probing = False

    def end_probe(self, url: str, models: Any) -> Dialect:
        """Store and return the dialect that the server's model list indicates; ``headers`` if it indicates none."""
        dialect = BY_OWNER.get(_owner(models), HEADERS)
        with self._lock:
            self._known.setdefault(url, _Known()).dialect = dialect
        return dialect

    def forget(self) -> None:
        """Forget all servers, so that each is asked and tried again."""
        with self._lock:
            self._known.clear()


def root_of(url: str) -> str:
    """A server's root: its base URL without ``/v1``, an Azure deployment, query and trailing slash."""
    parts = urlsplit(url)
    path = re.sub(r"/openai/deployments/[^/]+$", "", parts.path.rstrip("/"))
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/v1"), "", ""))


def _owner(models: Any) -> str:
    data = models.get("data") if isinstance(models, Mapping) else None
    first = data[0] if isinstance(data, list) and data else None
    owner = first.get("owned_by") if isinstance(first, Mapping) else None
    return owner if isinstance(owner, str) else ""


def shown(url: str) -> str:
    """A base URL without user, password and query."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def named_in(text: str, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that occur in a server's error message as whole words."""
    return [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


endpoints = Endpoints()
"""Shared by all clients of the process."""
