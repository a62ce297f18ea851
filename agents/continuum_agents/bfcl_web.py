"""Choose the web that BFCL's search tools see: the live web, a recorded web, or the live web while it is recorded.

We replace the two clients by which BFCL's ``WebSearchAPI`` reaches the web: SerpAPI's ``GoogleSearch`` and
``requests``. Their answers are processed (snippets or not, Markdown, errors) by BFCL's own code.
"""

from __future__ import annotations

import json
import sys
import time
from http.client import responses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import requests
from bfcl_eval.eval_checker.multi_turn_eval.func_source_code import web_search
from continuum_traces.appender import SharedLines

from continuum_agents.protocol import LIVE
from continuum_agents.recorded_web import RecordedWeb, WebAnswer, query_key, read_web

NO_RESULTS = {"error": "no such search was recorded"}
KEPT = ("error", "organic_results")
"""The fields of SerpAPI's response that BFCL reads."""

clock = time.monotonic  # noqa: TID251 - the tools of this process run in real time


def use_web(web: str, record: str | None = None) -> None:
    """Choose the web that BFCL's tools see for the rest of the process.

    Args:
        web: ``live``, or the file of a recorded web.
        record: a file to which the answers of the live web are appended.

    Raises:
        TraceError: the file is not a recorded web.
    """
    if web != LIVE:
        recorded = read_web(Path(web))
        web_search.GoogleSearch = lambda params: SimpleNamespace(
            get_dict=lambda: recorded_search(recorded, str(params["q"]))
        )
        web_search.requests = SimpleNamespace(get=lambda url, **options: recorded_page(recorded, url))
        return
    lines = None if record is None else SharedLines(Path(record))
    real = web_search.GoogleSearch
    web_search.GoogleSearch = lambda params: SimpleNamespace(get_dict=lambda: live_search(real(params), params, lines))
    if lines is not None:
        web_search.requests = SimpleNamespace(get=lambda url, **options: live_page(lines, url, **options))


def answered(web: RecordedWeb, key: str) -> WebAnswer | None:
    """Return the recorded answer, after the recorded time; None if it was not recorded."""
    answer = web.get(key)
    if answer is None:
        sys.stderr.write(f"not recorded: {key}\n")
    else:
        time.sleep(answer.seconds)
    return answer


def recorded_search(web: RecordedWeb, query: str) -> dict[str, Any]:
    """Return the recorded response to a query, after the recorded time."""
    answer = answered(web, query_key(query))
    if answer is not None and answer.error is not None:
        raise RuntimeError(answer.error)
    return NO_RESULTS if answer is None else dict(answer.response or {})


def recorded_page(web: RecordedWeb, url: str) -> requests.Response:
    """Return the recorded page, after the recorded time. Its status is 404 if the page was not recorded."""
    answer = answered(web, url) or WebAnswer(seconds=0.0, url=url, text="", status=404)
    if answer.error is not None:
        raise requests.RequestException(answer.error)
    response = requests.Response()
    response.url, response.status_code, response.encoding = url, answer.status, "utf-8"
    response.reason = responses.get(answer.status, "")
    response._content = (answer.text or "").encode()
    return response


def live_search(search: Any, params: dict[str, Any], lines: SharedLines | None) -> dict[str, Any]:
    """Return SerpAPI's response. It is appended to ``lines``, unless BFCL repeats the search after it.

    The text of an error contains the request's URL and therefore SerpAPI's key. Since BFCL shows the text to the model,
    the key is removed from it.
    """
    start_s, query, key = clock(), str(params["q"]), str(params.get("api_key") or "")
    try:
        response: dict[str, Any] = search.get_dict()
    except Exception as error:  # noqa: BLE001 - raised again, without the key
        reason = str(error).replace(key, "KEY") if key else str(error)
        if "429" not in reason:
            _keep(lines, start_s, {"query": query, "error": reason})
        raise RuntimeError(reason) from None
    if "429" not in str(response.get("error")):
        kept = {name: response[name] for name in KEPT if name in response}
        _keep(lines, start_s, {"query": query, "response": kept})
    return response


def live_page(lines: SharedLines, url: str, **options: Any) -> requests.Response:
    """Return the page. It is appended to ``lines``."""
    start_s = clock()
    try:
        response = requests.get(url, **options)
    except requests.RequestException as error:
        _keep(lines, start_s, {"url": url, "error": str(error)})
        raise
    _keep(lines, start_s, {"url": url, "text": response.text, "status": response.status_code})
    return response


def _keep(lines: SharedLines | None, start_s: float, answer: dict[str, Any]) -> None:
    if lines is not None:
        line = {**answer, "seconds": round(clock() - start_s, 6)}
        lines.append(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
