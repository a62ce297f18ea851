"""Read a recorded web: the answers of a search engine and of web servers, with their times. Standard library only.

The file consists of JSON lines. Each line is a search or a page::

    {"query": "...", "response": {"organic_results": [{"title": ..., "link": ..., "snippet": ...}]}, "seconds": 0.8}
    {"url": "https://...", "text": "<html>...", "status": 200, "seconds": 0.4}
    {"url": "https://...", "error": "... Read timed out. (read timeout=20)", "seconds": 20.1}

``response`` is SerpAPI's response; BFCL reads ``organic_results`` from it. If a query or a URL occurs twice, the later
line counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class RecordedWebError(Exception):
    """A file is not a recorded web. The message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a search, or to the request for a page."""

    seconds: float
    """The time from the request to the answer."""
    error: str | None = None
    """The text of the exception if the request failed."""
    response: Mapping[str, Any] = field(default_factory=dict)
    """SerpAPI's response to a search."""
    text: str = ""
    """The body of a page."""
    status: int = 200


@dataclass(frozen=True, slots=True)
class RecordedWeb:
    """Recorded answers by query and by URL."""

    searches: dict[str, Answer] = field(default_factory=dict)
    pages: dict[str, Answer] = field(default_factory=dict)

    def search(self, query: str) -> Answer | None:
        """Return the answer to a query; None if it was not recorded. Case and repeated spaces do not count."""
        return self.searches.get(query_key(query))

    def page(self, url: str) -> Answer | None:
        return self.pages.get(url)


def query_key(query: str) -> str:
    return " ".join(query.casefold().split())


def read_web(path: Path) -> RecordedWeb:
    """Read a recorded web.

    Raises:
        RecordedWebError: the file cannot be read or is not a recorded web.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # JSON may contain other line separators
    except (OSError, UnicodeDecodeError) as error:
        raise RecordedWebError(f"{path}: cannot read: {error}") from error
    web = RecordedWeb()
    for number, line in enumerate(lines, 1):
        if line.strip():
            _add(web, f"{path}:{number}", line)
    return web


def _add(web: RecordedWeb, where: str, line: str) -> None:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise RecordedWebError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict) or ("query" in data) == ("url" in data):
        raise RecordedWebError(f"{where}: expected an object with query or url")
    name = "query" if "query" in data else "url"
    key = _text(where, data, name)
    answer = _answer(where, data, name)
    if name == "query":
        web.searches[query_key(key)] = answer
    else:
        web.pages[key] = answer


def _answer(where: str, data: dict[str, Any], name: str) -> Answer:
    seconds = data.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise RecordedWebError(f"{where}: seconds: expected a number, 0 or more")
    if data.get("error") is not None:
        error = _text(where, data, "error")
        if name == "query" and "429" in error:
            raise RecordedWebError(f"{where}: error: BFCL repeats a search that fails with 429 for ever")
        return Answer(float(seconds), error=error)
    if name == "query":
        if not isinstance(data.get("response"), dict):
            raise RecordedWebError(f"{where}: response: expected SerpAPI's JSON object")
        return Answer(float(seconds), response=data["response"])
    status = data.get("status", 200)
    if not isinstance(status, int) or not 100 <= status <= 599:
        raise RecordedWebError(f"{where}: status: expected an HTTP status")
    return Answer(float(seconds), text=_text(where, data, "text"), status=status)


def _text(where: str, data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise RecordedWebError(f"{where}: {name}: expected text")
    return value
