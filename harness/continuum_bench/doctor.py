"""``continuum-bench doctor``: what works on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from continuum_agents.environments import FRAMEWORKS, AgentEnvironmentError, Framework, python_of
from continuum_server.step_times.catalog import available
from continuum_server.vllm_plugin.versions import PluginError, check_version
from continuum_traces.synth import BUNDLED, bundled
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    ok: bool
    found: str
    advice: str = ""
    optional: bool = False
    """Nothing else needs it, so its absence is no fault."""


def checks() -> list[Check]:
    machine = [check() for check in (_python, _vllm, _step_times, _bundled, _memory, _runs, _report, _router)]
    return [*machine, *_agents()]


def show_doctor(as_json: bool) -> int:
    found = checks()
    pairs = [asdict(p) for p in available()]
    if as_json:
        sys.stdout.write(json.dumps({"checks": [asdict(c) for c in found], "step_times": pairs}, indent=2) + "\n")
    else:
        table = Table("check", "", "found", "what to do")
        for check in found:
            missing = "-" if check.optional else "NO"
            table.add_row(check.name, "ok" if check.ok else missing, check.found, check.advice)
        console = Console(highlight=False)
        console.print(table)
        grid = Table("GPU", "model", "tensor parallel", "step times", title="GPUs and models", title_justify="left")
        degrees: dict[tuple[str, str, str], list[str]] = {}
        for pair in available():
            degrees.setdefault((pair.gpu, pair.model, pair.kind), []).append(str(pair.tensor_parallel))
        for (gpu, model, kind), found_degrees in degrees.items():
            grid.add_row(gpu, model, ",".join(found_degrees) if kind == "measured-table" else "any", kind)
        console.print(grid)
    return 0 if all(check.ok or check.optional for check in found) else 1


def _python() -> Check:
    good = sys.version_info[:2] == (3, 11)
    return Check("Python", good, platform.python_version(), "" if good else "the virtual engine is tested on 3.11")


def _vllm() -> Check:
    try:
        return Check("vLLM", True, check_version())
    except PluginError as error:
        return Check("vLLM", False, "not usable", str(error))


def _step_times() -> Check:
    measured = sum(pair.kind == "measured-table" for pair in available())
    return Check("step times", measured > 0, f"{measured} measured tables, rooflines for other pairs")


def _bundled() -> Check:
    counts = {name: sum(1 for _ in bundled(name)) for name in BUNDLED}
    return Check("bundled traces", all(counts.values()), ", ".join(f"{n}: {c} programs" for n, c in counts.items()))


def _memory() -> Check:
    pages: Callable[[str], int] = os.sysconf
    gib = pages("SC_PAGE_SIZE") * pages("SC_PHYS_PAGES") / 2**30
    return Check("memory, cores", gib > 4, f"{gib:.0f} GiB, {os.cpu_count()} cores", "" if gib > 4 else "use --jobs 1")


def _runs() -> Check:
    good = os.access(Path.cwd(), os.W_OK)
    return Check("runs directory", good, str(Path("runs")), "" if good else "choose a writable --out")


def _router() -> Check:
    try:
        return Check("router", True, f"vllm-router {version('vllm-router')}")
    except PackageNotFoundError:
        return Check("router", True, "none: serve runs one replica", "pip install 'continuum-ttl[replicas]'")


def _report() -> Check:
    missing = [name for name in ("plotly", "jinja2", "scipy") if importlib.util.find_spec(name) is None]
    return Check(
        "report",
        not missing,
        "ready" if not missing else f"missing {', '.join(missing)}",
        "make setup" if missing else "",
    )


def _agents() -> list[Check]:
    """The environments of the agent frameworks. `continuum-bench agent setup` makes them."""
    return [_agent(framework) for framework in FRAMEWORKS.values()]


def _agent(framework: Framework) -> Check:
    name, wanted = f"agent {framework.name}", f"{framework.distribution} {framework.pinned_version}"
    try:
        python_of(framework)
    except AgentEnvironmentError:
        return Check(name, False, f"no environment with {wanted}", framework.setup_command, optional=True)
    return Check(name, True, wanted, optional=True)
