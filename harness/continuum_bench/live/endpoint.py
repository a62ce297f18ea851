"""Reads a server's models, version, policy and hardware before the load starts."""

from __future__ import annotations

import json
import platform
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import version
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from continuum_traces.schema import Hardware, KvPool, Manifest
from continuum_traces.wire.urls import base_of, joined, root_of, web_proxy_of

from continuum_bench.errors import BenchError
from continuum_bench.invocation import command_line
from continuum_bench.show import duration, print_notice
from continuum_client.dialects import BY_HOST, BY_OWNER, DIALECTS, HEADERS, Dialect, owner_of

Answer = TypeVar("Answer", bound=msgspec.Struct)
MODELLED = ("GPU step times (the server's GPU is emulated)", "the model's answers (scripted or filler)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The facts that a server reports about itself."""

    base_url: str
    """The URL up to and including /v1."""
    models: tuple[str, ...]
    max_model_len: int | None = None
    vllm_version: str | None = None
    """None: the server is not vLLM, or does not say its version."""
    state: dict[str, Any] = field(default_factory=dict)
    """The first engine's Continuum state; empty without the plugin."""
    emulated: dict[str, Any] | None = None
    """Settings of the server's emulated GPU; None: the server reports none."""
    owner: str | None = None
    """Its kind, by its first model: vllm, sglang, tensorrt_llm, litellm ..."""
    kv_capacity: KvPool | None = None
    """``tokens`` and ``block_size`` of the KV pool; None: the server's metrics do not say."""
    name: str | None = None
    """The random name that ``continuum-bench serve`` printed when it started this server; None: started otherwise."""
    machine: str | None = None
    """Its GPUs and processor; None: it does not say."""
    random_weights: bool = False
    """The server says that its model has random weights."""

    def describe(self, model: str) -> str:
        """Describe the server in words: ``server 3f9a1c2e (vLLM 0.32.0), model m, policy continuum``."""
        kind = f"vLLM {self.vllm_version}" if self.vllm_version is not None else "not vLLM, or it does not say so"
        name = f"server {self.name}" if self.name else "a server that `continuum-bench serve` did not start"
        gpu = "" if self.emulated is None else "; its GPU is emulated"
        policy = f"policy {self.policy}" if self.state.get("policy") else "no policy named"
        return f"{name} ({kind}), model {model}, {policy}{gpu}"

    @property
    def _hardware(self) -> str:
        if self.emulated is not None:
            return "a server with an emulated GPU"
        if self.machine is None:
            return "a server; its hardware is not known to the client"
        return f"a server on {self.machine}{'; its weights are random' * self.random_weights}"

    @property
    def root(self) -> str:
        return root_of(self.base_url)

    def dialect_of(self, asked: str | None) -> Dialect:
        """Return the dialect of this name; None: that of this kind of server, or of an unknown kind headers only."""
        if asked is not None:
            return DIALECTS[asked]
        if self.vllm_version is not None:
            return DIALECTS["vllm"]
        return BY_HOST.get(urlsplit(self.base_url).hostname or "") or BY_OWNER.get(self.owner or "", HEADERS)

    @property
    def policy(self) -> str:
        """The scheduling policy. Without the plugin: ``vllm``, or ``server`` if the server may not be vLLM."""
        return str(self.state.get("policy") or ("vllm" if self.vllm_version is not None else "server"))

    def manifest(
        self, model: str, notes: Sequence[str] = (), versions: Mapping[str, str] | None = None, **facts: Any
    ) -> Manifest:
        """Return the manifest of a run against this server: what the server says, and the ``facts`` of the run."""
        python = {"vllm": self.vllm_version or "not said", "python": platform.python_version()}
        return Manifest(
            command=command_line(),
            continuum_version=version("continuum-ttl"),
            versions={**python, **(versions or {})},
            engine="endpoint",
            policy_options=dict(self.state.get("policy_options", {})),
            hardware=Hardware(
                endpoint=self._hardware, model=model, kv_capacity=self.kv_capacity, more={"emulated": self.emulated}
            ),
            modelled=() if self.emulated is None else MODELLED,
            notes=(f"server: {self.base_url}", *notes),
            **facts,
        )


class _Models(msgspec.Struct):
    data: Any = None


class _Facts(msgspec.Struct):
    """What vLLM's /version, and the plugin's /continuum/state and /continuum/engine, say."""

    version: str | None = None
    engines: list[dict[str, Any]] = []
    emulated: dict[str, Any] | None = None
    server: str | None = None
    machine: str | None = None
    random_weights: bool = False


NO_ANSWER = (OSError, HTTPException, ValueError, msgspec.MsgspecError, RecursionError)
"""Errors of a request to something that may be no such server."""
_NO_LIST = (404, 405, 501)
"""Statuses of ``/models`` at servers and gateways that have no list of models."""
_NOT_YET = (502, 503, 504)
"""Statuses of a gateway whose server is not up yet."""
WAIT_S = 900.0
"""Longest wait of ``--wait``: as long as ``serve`` gives its server to start."""


def wait_for_server(base_url: str, api_key: str | None, longest_s: float = WAIT_S) -> None:
    """Wait until something answers at the server's ``/models``, whatever it answers.

    Raises:
        BenchError: nothing answers within ``longest_s`` seconds, or the URL has a wrong form.
    """
    check_url(base_url)
    base, until_s, said = base_of(base_url), _now_s() + longest_s, False
    while (why := _why_no_answer(joined(base, "/models"), api_key)) is not None:
        if _now_s() >= until_s:
            raise BenchError(f"--base-url {base}: no server answered within {duration(longest_s)} (--wait): {why}")
        if not said:
            print_notice(f"waiting for {base}, at most {duration(longest_s)}: {why}")
        said = True
        time.sleep(0.25)


def _why_no_answer(url: str, api_key: str | None) -> str | None:
    """Return why there is no answer yet; None: there is one, also if it is an error."""
    try:
        get_json(url, api_key, _Models)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}" if error.code in _NOT_YET else None
    except OSError as error:
        wrong = isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError)
        return None if wrong else words_of(error)
    except NO_ANSWER:
        return None
    return None


def words_of(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - for a timeout


def probe_server(base_url: str, api_key: str | None, model: str | None = None, wait: bool = False) -> Endpoint:
    """Ask the server for its models, its version and Continuum's state.

    Args:
        base_url: the server's URL up to /v1.
        api_key: is sent with each question.
        model: the model that will be asked. If it is given, the server need not list its models.
        wait: whether to wait until the server answers.

    Raises:
        BenchError: no server answers, it refuses the key, or it serves no model.
    """
    check_url(base_url)
    base = base_of(base_url)
    if wait:
        wait_for_server(base_url, api_key)
    try:
        models = _models(get_json(joined(base, "/models"), api_key, _Models).data)
    except urllib.error.HTTPError as error:
        if model is None or error.code not in _NO_LIST:
            raise BenchError(f"--base-url {base}: {error.code} {error.reason} from /models; {_asked(error)}") from error
        models = []
    except NO_ANSWER as error:
        raise BenchError(f"--base-url {base}: no OpenAI-compatible server answers: {words_of(error)}") from error
    models = models or ([{"id": model}] if model is not None else [])
    if not models:
        raise BenchError(f"--base-url {base}: serves no model")
    root, first = root_of(base), models[0]
    state = (_states(root, api_key) or [{}])[0]
    version = _maybe(f"{root}/version", api_key).version
    engine = _maybe(f"{root}/continuum/engine", api_key)
    names, owner = tuple(model["id"] for model in models), owner_of(first) or None
    facts = _length(first.get("max_model_len")), version, state, engine.emulated, owner, _kv_pool(root), engine.server
    return Endpoint(base, names, *facts, engine.machine, engine.random_weights)


def _asked(error: urllib.error.HTTPError) -> str:
    if error.code in (401, 403):
        return "is the API key set (OPENAI_API_KEY, --api-key-env)?"
    if error.code in _NO_LIST:
        return "does the URL end in /v1? If the server has no list of models, name the model"
    return "does the URL end in /v1?"


def _models(listed: Any) -> list[dict[str, Any]]:
    """Return the models that have an id; other facts may be missing or odd.

    Raises:
        ValueError: it is no list.
    """
    if not isinstance(listed, list):
        raise ValueError(f"/models: expected a list in `data`, found {listed!r:.60}")
    return [model for model in listed if isinstance(model, dict) and isinstance(model.get("id"), str) and model["id"]]


def _length(value: Any) -> int | None:
    """Return a number of tokens; None: the server does not say one."""
    try:
        return int(value) if not isinstance(value, bool) and 0 < float(value) == int(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def plugin_errors(root: str, api_key: str | None) -> int:
    """Return how many exceptions the server's plugin, which runs its policy, has caught since the server started."""
    return sum(int(state.get("plugin_errors", 0)) for state in _states(root, api_key))


def _states(root: str, api_key: str | None) -> list[dict[str, Any]]:
    """Return the state of each engine of a server with the plugin; else empty."""
    return list(_maybe(f"{root}/continuum/state", api_key).engines or ())


def check_url(base_url: str) -> None:
    """Check the form of a server's URL.

    Raises:
        BenchError: it is no http(s) URL, or has a password in it.
    """
    if not base_url.startswith(("http://", "https://")):
        raise BenchError(f"--base-url {base_url}: expected http:// or https://")
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises where it is no port
    except ValueError as error:
        raise BenchError(f"--base-url {base_url}: {error}") from error
    if parts.username is not None:
        raise BenchError(
            "--base-url: a password in it would be written to the records; a key comes from OPENAI_API_KEY"
        )


def get_json(url: str, api_key: str | None, kind: type[Answer]) -> Answer:
    """Return the JSON at a URL.

    Raises:
        Exception: one of ``NO_ANSWER``; ``HTTPError`` (an ``OSError``) for a status of 400 or more.
    """
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    with _opened(request) as answer:
        return msgspec.convert(json.loads(answer.read()), kind)  # a policy's numbers may be infinite


def _opened(request: urllib.request.Request) -> Any:
    """Send a request as the load generator does: through the environment's web proxy, except to this machine."""
    proxy = web_proxy_of(request.full_url)
    through = urllib.request.ProxyHandler({} if proxy is None else {request.type: proxy})
    return urllib.request.build_opener(through).open(request, timeout=10.0)


def _maybe(url: str, api_key: str | None) -> _Facts:
    """Return the answer of this URL; without facts if there is none."""
    try:
        return get_json(url, api_key, _Facts)
    except NO_ANSWER:
        return _Facts()


def metrics_page(root: str) -> str:
    """Return the text of the server's ``/metrics``; empty if there is none.

    TensorRT-LLM's is elsewhere; its ``/metrics`` is JSON.
    """
    for path in ("metrics", "prometheus/metrics"):
        with suppress(*NO_ANSWER), _opened(urllib.request.Request(f"{root}/{path}")) as answer:
            page = str(answer.read().decode("utf-8", "replace"))
            if not page.lstrip().startswith("["):
                return page
    return ""


def _kv_pool(root: str) -> KvPool | None:
    """Read the KV pool's size and block size, both in tokens, from vLLM's metrics; None: the metrics do not say."""
    page = metrics_page(root)
    line = next((line for line in page.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    try:
        blocks, size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError):
        return None
    return KvPool(tokens=blocks * size, block_size=size)
