"""``continuum-bench doctor``: checks what works on this machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from continuum_agents.environments import FRAMEWORKS, AgentEnvironmentError, Framework, python_of
from continuum_analysis.compare.words import TextTable
from continuum_server.step_times.catalog import available, find_model
from continuum_server.step_times.model import Provenance
from continuum_server.step_times.specs import GPUS
from continuum_server.vllm_plugin.versions import PluginError, check_version

from continuum_bench.show import print_json, print_line, print_table


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    found: str
    advice: str = ""
    optional: bool = False
    """No other feature depends on it, so a failed check is no error."""


def show_doctor(as_json: bool) -> int:
    """Print the checks, the models and the GPUs. Returns 1 if a check failed that other features depend on."""
    machine = [check() for check in (_python, _vllm, _step_times, _memory, _router)]
    checks, pairs = [*machine, *map(_agent, FRAMEWORKS.values())], available()
    if as_json:
        models = [_model_facts(name) for name in _names(pairs)]
        print_json({"checks": [asdict(c) for c in checks], "models": models, "step_times": [asdict(p) for p in pairs]})
    else:
        states = ("ok" if check.ok else "-" if check.optional else "NO" for check in checks)
        rows = [(check.name, state, check.found, check.advice) for check, state in zip(checks, states, strict=True)]
        headings = ("check", "", "found", "what to do")
        print_table(TextTable(headings, rows), "This machine", words=headings)
        print_table(_models_table(pairs), MODELS_TITLE, words=("measured tables",))
        print_line(PAIRS_NOTE.format(gpus=", ".join(gpu.name for gpu in GPUS)))
    return 0 if all(check.ok or check.optional for check in checks) else 1


PAIRS_NOTE = """\
GPUs: {gpus}.
Pairs without a table have a roofline (on more than two GPUs only over NVLink). --model takes these names and Hugging
Face ids; -fp8 behind a bf16 model means fp8 weights, +fp8-kv behind any model fp8 KV."""


def _names(pairs: Sequence[Provenance]) -> list[str]:
    return sorted({pair.model for pair in pairs})


def _model_facts(name: str) -> dict[str, Any]:
    model = find_model(name)
    return {
        "name": name,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "max_context_tokens": model.max_context_tokens,
        "notes": model.notes,
    }


MODELS_TITLE = "Models, and the GPUs (x tensor parallel) with measured tables; * is your own"


def _models_table(pairs: Sequence[Provenance]) -> TextTable:
    """Return a table with a row for each model: its memory, and the GPUs with measured step times."""
    degrees: dict[str, dict[str, list[str]]] = {}
    for pair in pairs:
        if pair.kind != "roofline":
            own = "*" if pair.kind == "user-table" else ""
            degrees.setdefault(pair.model, {}).setdefault(pair.gpu, []).append(f"{pair.tensor_parallel}{own}")
    rows = []
    for name in _names(pairs):
        model = find_model(name)
        tables = ", ".join(f"{gpu} x {' '.join(found)}" for gpu, found in degrees.get(name, {}).items())
        weights, kv = f"{model.weight_bytes / 1e9:.0f} GB", f"{model.kv_bytes_per_token / 1e3:.0f} kB"
        rows.append((name, weights, kv, tables or "none: roofline"))
    return TextTable(("model", "weights", "KV per token", "measured tables"), rows)


def _python() -> Check:
    good = (3, 11) <= sys.version_info < (3, 14)
    return Check("Python", good, platform.python_version(), "" if good else "the engines need Python 3.11 to 3.13")


def _vllm() -> Check:
    try:
        return Check("vLLM", True, check_version())
    except PluginError as error:
        return Check("vLLM", False, "not usable", str(error))


def _step_times() -> Check:
    kinds = [pair.kind for pair in available()]
    measured, own = kinds.count("measured-table"), kinds.count("user-table")
    yours = f", {own} of your own" if own else ""
    return Check("step times", measured > 0, f"{measured} measured tables{yours}, rooflines for other pairs")


def _memory() -> Check:
    pages: Callable[[str], int] = os.sysconf
    gib = pages("SC_PAGE_SIZE") * pages("SC_PHYS_PAGES") / 2**30
    return Check("memory, cores", gib > 4, f"{gib:.0f} GiB, {os.cpu_count()} cores", "" if gib > 4 else "use --jobs 1")


def _router() -> Check:
    try:
        return Check("router", True, f"vllm-router {version('vllm-router')}")
    except PackageNotFoundError:
        return Check("router", True, "none: serve runs one replica", "pip install vllm-router")


def _agent(framework: Framework) -> Check:
    """Check the environment of an agent framework, which `continuum-bench agent setup` makes."""
    name, wanted = f"agent {framework.name}", f"{framework.distribution} {framework.pinned_version}"
    try:
        python_of(framework)
    except AgentEnvironmentError:
        return Check(name, False, f"no environment with {wanted}", framework.setup_command, optional=True)
    return Check(name, True, wanted, optional=True)
