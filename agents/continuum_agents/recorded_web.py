"""Read a recorded web: the answers of a search engine and of web servers, with their times.

The file consists of JSON lines. Each line is a search or a page::

    {"query": "...", "response": {"organic_results": [{"title": ..., "link": ..., "snippet": ...}]}, "seconds": 0.8}
    {"url": "https://...", "text": "<html>...", "status": 200, "seconds": 0.4}
    {"url": "https://...", "error": "... Read timed out. (read timeout=20)", "seconds": 20.1}

``response`` is SerpAPI's response; BFCL reads ``organic_results`` from it. If a query or a URL occurs twice, the later
line counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from continuum_traces.programs.jsonl import TraceError, text_lines
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class WebAnswer(BaseModel):
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
    def _is_whole(self) -> WebAnswer:
        if (self.query is None) == (self.url is None):
            raise ValueError("expected query or url")
        if self.query is not None and "429" in (self.error or ""):
            raise ValueError("error: BFCL repeats a search that fails with 429 for ever")
        name, answer = ("response", self.response) if self.url is None else ("text", self.text)
        if self.error is None and answer is None:
            raise ValueError(f"{name}: missing")
        return self


RecordedWeb = dict[str, WebAnswer]
"""The recorded answers: pages by URL, searches by ``query_key``."""


def query_key(query: str) -> str:
    """Return the key of a search. Case and repeated spaces do not count."""
    return f"search: {' '.join(query.casefold().split())}"


def read_web(path: Path) -> RecordedWeb:
    """Read a recorded web.

    Raises:
        TraceError: the file cannot be read or is not a recorded web. The message names file, line and field.
    """
    web: RecordedWeb = {}
    for number, line in text_lines(path):
        if line.strip():
            try:
                answer = WebAnswer.model_validate_json(line)
            except ValidationError as error:
                (what, *_) = error.errors()
                fault = ": ".join([*map(str, what["loc"]), what["msg"].removeprefix("Value error, ")])
                raise TraceError(f"{path}:{number}: {fault}") from error
            web[answer.url or query_key(str(answer.query))] = answer
    return web
