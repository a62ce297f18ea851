"""Reads a server's models, version, policy and hardware before the load starts."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from continuum_bench.errors import BenchError
from continuum_client.dialects import BY_HOST, BY_OWNER, DIALECTS, HEADERS, Dialect

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
    """``owned_by`` of its first model: vllm, sglang, tensorrt_llm ..."""
    kv_capacity: dict[str, int] | None = None
    """``tokens`` and ``block_size`` of the KV pool; None: the server's metrics do not say."""
    name: str | None = None
    """The random name that ``continuum-bench serve`` printed when it started this server; None: started otherwise."""

    def describe(self, model: str) -> str:
        """Describe the server in words: ``server 3f9a1c2e (vLLM 0.32.0), model m, policy continuum``."""
        kind = f"vLLM {self.vllm_version}" if self.vllm_version is not None else "not vLLM, or it does not say so"
        name = f"server {self.name}" if self.name else "a server that `continuum-bench serve` did not start"
        gpu = "" if self.emulated is None else "; its GPU is emulated"
        return f"{name} ({kind}), model {model}, policy {self.policy}{gpu}"

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def dialect(self) -> Dialect:
        """The dialect of this kind of server; if the kind is unknown, the dialect that only sends headers."""
        if self.vllm_version is not None:
            return DIALECTS["vllm"]
        return BY_HOST.get(urlsplit(self.base_url).hostname or "") or BY_OWNER.get(self.owner or "", HEADERS)

    @property
    def policy(self) -> str:
        """The scheduling policy. Without the plugin: ``vllm``, or ``server`` if the server may not be vLLM."""
        return str(self.state.get("policy") or ("vllm" if self.vllm_version is not None else "server"))

    @property
    def modelled(self) -> tuple[str, ...]:
        """The modelled parts, for the manifest."""
        return () if self.emulated is None else MODELLED

    def hardware(self, model: str) -> dict[str, Any]:
        """The hardware, for the manifest."""
        kv = {} if self.kv_capacity is None else {"kv_capacity": self.kv_capacity}
        if self.emulated is None:
            return {"endpoint": "a server; its hardware is not known to the client", "model": model, **kv}
        return {"endpoint": "a server with an emulated GPU", "emulated": self.emulated, "model": model, **kv}


def probe_server(base_url: str, api_key: str | None) -> Endpoint:
    """Ask the server for its models, its version and Continuum's state.

    Raises:
        BenchError: no server answers, it refuses the key, or it serves no model.
    """
    if not base_url.startswith(("http://", "https://")):
        raise BenchError(f"--base-url {base_url}: expected http:// or https://")
    if urlsplit(base_url).username is not None:
        raise BenchError(
            "--base-url: a password in it would be written to the records; a key comes from OPENAI_API_KEY"
        )
    base = base_url.rstrip("/")
    try:
        listed = _get(f"{base}/models", api_key)
    except urllib.error.HTTPError as error:
        asked = (
            "is the API key set (OPENAI_API_KEY, --api-key-env)"
            if error.code in (401, 403)
            else "does the URL end in /v1"
        )
        raise BenchError(f"--base-url {base}: {error.code} {error.reason} from /models; {asked}?") from error
    except (OSError, ValueError) as error:
        raise BenchError(f"--base-url {base}: no OpenAI-compatible server answers: {error}") from error
    models = listed.get("data", []) if isinstance(listed, dict) else []
    names = tuple(str(model["id"]) for model in models if isinstance(model, dict) and "id" in model)
    if not names:
        raise BenchError(f"--base-url {base}: serves no model")
    root = base.removesuffix("/v1")
    state = (_states(root, api_key) or [{}])[0]
    version = _maybe(f"{root}/version", api_key).get("version")
    engine = _maybe(f"{root}/continuum/engine", api_key)
    emulated, name = engine.get("emulated"), engine.get("server")
    first, (tokens, block_size) = models[0], kv_size(root)
    kv = {"tokens": tokens, "block_size": block_size} if tokens and block_size else None
    return Endpoint(base, names, first.get("max_model_len"), version, state, emulated, first.get("owned_by"), kv, name)


def plugin_errors(root: str, api_key: str | None) -> int:
    """Return how many exceptions the server's plugin, which runs its policy, has caught since the server started."""
    return sum(int(state.get("plugin_errors", 0)) for state in _states(root, api_key))


def _states(root: str, api_key: str | None) -> list[dict[str, Any]]:
    """Return the state of each engine of a server with the plugin; else empty."""
    return list(_maybe(f"{root}/continuum/state", api_key).get("engines") or ())


def _get(url: str, api_key: str | None) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    with urllib.request.urlopen(request, timeout=10.0) as answer:
        return json.loads(answer.read())


def _maybe(url: str, api_key: str | None) -> dict[str, Any]:
    """Return the JSON object at this URL; empty if there is none."""
    try:
        answer = _get(url, api_key)
    except (OSError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def kv_size(root: str) -> tuple[int | None, int | None]:
    """Read the KV pool's size and block size, both in tokens, from vLLM's metrics; None: the metrics do not say."""
    try:
        with urllib.request.urlopen(f"{root}/metrics", timeout=10.0) as answer:
            text = answer.read().decode("utf-8", "replace")
    except OSError:
        return None, None
    line = next((line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")), "")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    try:
        blocks, size = int(labels["num_gpu_blocks"]), int(labels["block_size"])
    except (KeyError, ValueError):
        return None, None
    return blocks * size, size
