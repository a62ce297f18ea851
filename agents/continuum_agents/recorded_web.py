"""Read a recorded web: the answers of a search engine and of web servers, with their times.

The file consists of JSON lines. Each line is a search or a page::

    {"query": "...", "response": {"organic_results": [{"title": ..., "link": ..., "snippet": ...}]}, "seconds": 0.8}
    {"url": "https://...", "text": "<html>...", "status": 200, "seconds": 0.4}
    {"url": "https://...", "error": "... Read timed out. (read timeout=20)", "seconds": 20.1}

``response`` is SerpAPI's response; BFCL reads ``organic_results`` from it. If a query or a URL occurs twice, the later
line counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class RecordedWebError(Exception):
    """A file is not a recorded web. The message names file, line and field."""


class Answer(BaseModel):
    """The answer to a search, or to the request for a page: a line of the file."""

    model_config = ConfigDict(frozen=True, strict=True)

    seconds: float = Field(ge=0, allow_inf_nan=False)
    """The time from the request to the answer."""
    query: str | None = None
    url: str | None = None
    error: str | None = None
    """The text of the exception if the request failed."""
    response: dict[str, Any] | None = None
    """SerpAPI's response to a search."""
    text: str | None = None
    """The body of a page."""
    status: int = Field(default=200, ge=100, le=599)

    @model_validator(mode="after")
    def _is_whole(self) -> Answer:
        if (self.query is None) == (self.url is None):
            raise ValueError("expected query or url")
        if self.query is not None and "429" in (self.error or ""):
            raise ValueError("error: BFCL repeats a search that fails with 429 for ever")
        name, answer = ("response", self.response) if self.url is None else ("text", self.text)
        if self.error is None and answer is None:
            raise ValueError(f"{name}: missing")
        return self


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
            try:
                answer = Answer.model_validate_json(line)
            except ValidationError as error:
                (what, *_) = error.errors()
                said = ": ".join([*map(str, what["loc"]), what["msg"].removeprefix("Value error, ")])
                raise RecordedWebError(f"{path}:{number}: {said}") from error
            if answer.url is None:
                web.searches[query_key(str(answer.query))] = answer
            else:
                web.pages[answer.url] = answer
    return web
