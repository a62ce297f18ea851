"""``continuum-bench doctor``: checks what works on this machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from continuum_agents.environments import FRAMEWORKS, AgentEnvironmentError, Framework, python_of
from continuum_analysis.compare.words import TextTable
from continuum_server.step_times.catalog import available, find_model
from continuum_server.step_times.model import Provenance
from continuum_server.step_times.specs import GPUS
from continuum_server.vllm_plugin.versions import PluginError, check_version

from continuum_bench.checks import Check, show_checks
from continuum_bench.show import print_line, print_table


def show_doctor(as_json: bool) -> int:
    """Print the checks, the models and the GPUs. Returns 1 if a check failed that other features depend on."""
    machine, pairs = [check() for check in (_python, _vllm, _step_times, _memory)], available()
    facts = {
        "models": [_model_facts(name) for name in _names(pairs)] if as_json else [],
        "step_times": [asdict(pair) for pair in pairs],
    }
    status = show_checks([*machine, *map(_agent, FRAMEWORKS.values())], "This machine", as_json, **facts)
    if not as_json:
        print_table(_models_table(pairs), MODELS_TITLE, words=("measured tables",))
        print_line(PAIRS_NOTE.format(gpus=", ".join(gpu.name for gpu in GPUS)))
    return status


PAIRS_NOTE = """\
GPUs: {gpus}.
Pairs without a table have a roofline (on more than two GPUs only over NVLink). --model takes these names and Hugging
Face ids. Append -fp8 to a bf16 model's name for fp8 weights, +fp8-kv to any name for fp8 KV."""


def _names(pairs: Sequence[Provenance]) -> list[str]:
    return sorted({pair.model for pair in pairs})


def _model_facts(name: str) -> dict[str, Any]:
    model = find_model(name)
    shown = ("weight_bytes", "kv_bytes_per_token", "max_context_tokens", "notes")
    return {"name": name, **{fact: getattr(model, fact) for fact in shown}}


MODELS_TITLE = "Models, and the GPUs (x tensor parallel) with measured tables"


def _models_table(pairs: Sequence[Provenance]) -> TextTable:
    """Return a table with a row for each model: its memory, and the GPUs with measured step times."""
    degrees: dict[str, dict[str, list[str]]] = {}
    for pair in pairs:
        if pair.kind != "roofline":
            degrees.setdefault(pair.model, {}).setdefault(pair.gpu, []).append(f"{pair.tensor_parallel}")
    rows = []
    for name in _names(pairs):
        model = find_model(name)
        tables = ", ".join(f"{gpu} x {' '.join(counts)}" for gpu, counts in degrees.get(name, {}).items())
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
    measured = [pair.kind for pair in available()].count("measured-table")
    return Check("step times", measured > 0, f"{measured} pairs of GPU and model measured, rooflines for others")


def _memory() -> Check:
    pages: Callable[[str], int] = os.sysconf
    gib = pages("SC_PAGE_SIZE") * pages("SC_PHYS_PAGES") / 2**30
    return Check("memory, cores", gib > 4, f"{gib:.0f} GiB, {os.cpu_count()} cores", "" if gib > 4 else "use --jobs 1")


def _agent(framework: Framework) -> Check:
    """Check the environment of an agent framework, which `continuum-bench agent setup` makes."""
    name, wanted = f"agent {framework.name}", f"{framework.distribution} {framework.pinned_version}"
    try:
        python_of(framework)
    except AgentEnvironmentError:
        return Check(name, False, f"no environment with {wanted}", framework.setup_command, optional=True)
    return Check(name, True, wanted, optional=True)
