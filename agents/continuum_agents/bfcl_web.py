"""Choose the web that BFCL's search tools see: the live web, a recorded web, or the live web while it is recorded.

We replace the two clients by which BFCL's ``WebSearchAPI`` reaches the web: SerpAPI's ``GoogleSearch`` and
``requests``. Their answers are processed (snippets or not, Markdown, errors) by BFCL's own code.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from http.client import responses
from pathlib import Path
from typing import Any

import requests
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import web_search

from continuum_agents.recorded_web import Answer, RecordedWeb, read_web
from continuum_client.appender import SharedLines

LIVE = "live"
NO_RESULTS = {"error": "no such search was recorded"}

Sleep = Callable[[float], None]
Clock = Callable[[], float]


def use_web(web: str, record: str | None = None) -> None:
    """Choose the web that BFCL's tools see for the rest of the process.

    Args:
        web: ``live``, or the file of a recorded web.
        record: a file to which the answers of the live web are appended.

    Raises:
        RecordedWebError: the file is not a recorded web.
    """
    if web != LIVE:
        recorded = read_web(Path(web))
        web_search.GoogleSearch = lambda params: RecordedSearch(recorded, params)
        web_search.requests = RecordedPages(recorded)
        return
    lines = None if record is None else SharedLines(Path(record))
    real = web_search.GoogleSearch
    web_search.GoogleSearch = lambda params: LiveSearch(real(params), params, lines)
    if lines is not None:
        web_search.requests = LivePages(lines)


class RecordedSearch:
    """Replaces SerpAPI's client, and answers from a recorded web."""

    def __init__(self, web: RecordedWeb, params: dict[str, Any], sleep: Sleep = time.sleep) -> None:
        self._web = web
        self._query = str(params["q"])
        self._sleep = sleep

    def get_dict(self) -> dict[str, Any]:
        """Return the recorded response, after the recorded time."""
        answer = self._web.search(self._query)
        if answer is None:
            _log(f"not recorded: query {self._query!r}")
            return NO_RESULTS
        self._sleep(answer.seconds)
        if answer.error is not None:
            raise RuntimeError(answer.error)
        return dict(answer.response)


class RecordedPages:
    """Replaces the part of ``requests`` that BFCL uses, and answers from a recorded web."""

    def __init__(self, web: RecordedWeb, sleep: Sleep = time.sleep) -> None:
        self._web = web
        self._sleep = sleep

    def get(self, url: str, **options: Any) -> requests.Response:
        """Return the recorded page, after the recorded time. Its status is 404 if the page was not recorded."""
        answer = self._web.page(url)
        if answer is None:
            _log(f"not recorded: {url}")
            answer = Answer(0.0, status=404)
        self._sleep(answer.seconds)
        if answer.error is not None:
            raise requests.RequestException(answer.error)
        return _response(url, answer)


def _response(url: str, answer: Answer) -> requests.Response:
    response = requests.Response()
    response.url, response.status_code, response.encoding = url, answer.status, "utf-8"
    response.reason = responses.get(answer.status, "")
    response._content = answer.text.encode()
    return response


class LiveSearch:
    """SerpAPI's client. Its answers are appended to ``lines``, except those after which BFCL repeats the search.

    The text of an error contains the request's URL and therefore SerpAPI's key. Since BFCL shows the text to the model,
    the key is removed from it.
    """

    def __init__(
        self,
        search: Any,
        params: dict[str, Any],
        lines: SharedLines | None = None,
        clock: Clock = time.monotonic,  # noqa: TID251 - the default of an injected clock
    ) -> None:
        self._search = search
        self._query = str(params["q"])
        self._key = str(params.get("api_key") or "")
        self._lines = lines
        self._clock = clock

    def get_dict(self) -> dict[str, Any]:
        start_s = self._clock()
        try:
            response: dict[str, Any] = self._search.get_dict()
        except Exception as error:  # noqa: BLE001 - raised again, without the key
            text = str(error).replace(self._key, "KEY") if self._key else str(error)
            self._keep(start_s, text, {"error": text})
            raise RuntimeError(text) from None
        kept = {name: response[name] for name in KEPT if name in response}
        self._keep(start_s, str(response.get("error", "")), {"response": kept})
        return response

    def _keep(self, start_s: float, error: str, answer: dict[str, Any]) -> None:
        if self._lines is not None and "429" not in error:
            _append(self._lines, {"query": self._query, **answer, "seconds": round(self._clock() - start_s, 6)})


KEPT = ("error", "organic_results")
"""The fields of SerpAPI's response that BFCL reads."""


class LivePages:
    """The part of ``requests`` that BFCL uses. Its answers are appended to ``lines``."""

    def __init__(
        self,
        lines: SharedLines,
        clock: Clock = time.monotonic,  # noqa: TID251 - the default of an injected clock
    ) -> None:
        self._lines = lines
        self._clock = clock

    def get(self, url: str, **options: Any) -> requests.Response:
        start_s = self._clock()
        try:
            response = requests.get(url, **options)
        except requests.RequestException as error:
            self._keep(start_s, url, {"error": str(error)})
            raise
        self._keep(start_s, url, {"text": response.text, "status": response.status_code})
        return response

    def _keep(self, start_s: float, url: str, answer: dict[str, Any]) -> None:
        _append(self._lines, {"url": url, **answer, "seconds": round(self._clock() - start_s, 6)})


def _append(lines: SharedLines, line: dict[str, Any]) -> None:
    lines.append(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
