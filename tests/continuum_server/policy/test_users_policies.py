"""Policies of users' own packages: by entry point or as ``module:Class``, in virtual time and on a server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from continuum_server.policy.registry import PolicyError, find_policy, is_policy, make_policy, read_options
from continuum_server.server_command import command_of
from continuum_server.server_config import ServerConfig
from continuum_server.virtual.loop import Job
from continuum_server.vllm_plugin.metrics import prometheus_text
from continuum_server.vllm_plugin.online import Online
from continuum_server.vllm_plugin.plugin_settings import Settings, read_settings
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_server.vllm_plugin.state import engine_state
from nano import build, play, program
from policy_driver import MACHINE

CODE = (Path(__file__).parents[3] / "examples" / "my_policy.py").read_text(encoding="utf-8")
PATH = "my_policy:Recompute"
HEAD = "from dataclasses import dataclass\nfrom continuum_server.policy.base import Options, Policy\n"


def install(folder: Path, entries: str, package: str = "my-package") -> None:
    """What ``pip install --target`` leaves of a package whose only module is ``my_policy``."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[continuum.policies]\n{entries}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """On the path, with the page's policy; the module is forgotten afterwards."""
    (tmp_path / "my_policy.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    return tmp_path


def test_a_package_brings_its_policy(folder: Path) -> None:
    install(folder, f"recompute = {PATH}")
    policy = make_policy("recompute", {"factor": "2"}, MACHINE)
    assert (policy.name, policy.options.factor) == ("recompute", 2.0)  # type: ignore[attr-defined]
    assert find_policy("recompute+offload") is find_policy("recompute") is find_policy(PATH)
    assert is_policy("recompute")
    assert not any(map(is_policy, ("recompute+offload", "recompute(factor=2)")))
    with pytest.raises(PolicyError, match=r"there are: vllm, .*, recompute; each"):
        find_policy("moon")


@pytest.mark.parametrize("name", ["recompute", PATH])
def test_it_runs_on_vllms_scheduler_and_a_server_is_told_of_it(folder: Path, name: str) -> None:
    install(folder, f"recompute = {PATH}")
    held, dropped = (play([Job(program("p", turns=3), 0.0)], name, {"factor": factor}) for factor in (1e3, 0.0))
    assert (len(held.of("pin")), len(dropped.of("pin"))) == (2, 0)
    command, _ = command_of(ServerConfig(policy=name, policy_options={"factor": 2.0}), 8000)
    settings = read_settings(json.loads(command[command.index("--additional-config") + 1]))
    assert type(make_policy(settings.policy, settings.policy_options, MACHINE)) is find_policy(name)


def test_notes_of_a_hold_that_no_record_has_are_left_out(folder: Path) -> None:
    held = "return Hold(5.0, notes={'eta': 0.5, 'mood': 1.0})"
    code = re.sub(r"return Hold\(.*\)", held, CODE)
    (folder / "my_policy.py").write_text(code)
    pins = play([Job(program("p", turns=3), 0.0)], PATH).of("pin")
    assert [(pin.ttl_s, pin.eta) for pin in pins] == [(5.0, 0.5)] * 2


def test_what_a_policy_shows(folder: Path) -> None:
    """``gauges`` name what of ``state()`` is in /continuum/state and /metrics."""
    gauges = """
    gauges: ClassVar[Mapping[str, str]] = {"longest_hold_seconds": "Longest TTL so far", "not_yet": "Unknown at first"}

    def state(self) -> dict[str, Any]:
        return {"longest_hold_seconds": 1.5}
"""
    imports = "from collections.abc import Mapping\nfrom typing import Any\n"
    (folder / "my_policy.py").write_text(f"{imports}{CODE}{gauges}")
    scheduler, _ = build([], PATH, {}, scheduler_type=ProgramScheduler)
    state = engine_state(json.loads(json.dumps(Online(scheduler, Settings(PATH, {})).snapshot())))
    assert state["gauges"] == {"longest_hold_seconds": {"value": 1.5, "help": "Longest TTL so far"}}
    assert 'continuum:longest_hold_seconds{engine="0"} 1.5' in prometheus_text([state])


@pytest.mark.slow
def test_in_a_sweep(tmp_path: Path) -> None:
    """From the working directory; each run is a process of its own."""
    (tmp_path / "my_policy.py").write_text(CODE)
    sweep = ["sweep", "--set", f"policy={PATH}", "--set", "num_programs=2", "--set", "jps=0.5", "--out", "grid"]
    subprocess.run([sys.executable, "-P", "-m", "continuum_bench", *sweep], cwd=tmp_path, check=True)


MINE = f"{HEAD}class Mine(Policy):\n  "
OWN = f"{HEAD}@dataclass(frozen=True)\nclass Own(Options):\n  FIELD\n"
OWN += "class Mine(Policy):\n  name, options_type = 'mine', Own"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import nowhere", "cannot import it: ModuleNotFoundError: No module named 'nowhere'"),
        ("def broken(:", "cannot import it: SyntaxError"),
        ("", "has no attribute 'Mine'"),
        ("Mine = 3", "Mine is not a subclass of continuum_server.policy.base.Policy"),
        *((f"{MINE}{body}", "Mine needs a name of its own") for body in ("...", "name = 'a.b'")),
        (f"{MINE}name = 'continuum'", "name 'continuum' of Mine is taken"),
        (f"{MINE}name = 'mine'\n  options_type = int", "int is not a dataclass"),
        (OWN.replace("FIELD", "sizes: list[int] | None = None"), "Own: sizes is of type list[int] | None; an option"),
    ],
)
def test_a_policy_that_cannot_be_used_is_refused(folder: Path, code: str, says: str) -> None:
    (folder / "my_policy.py").write_text(code)
    with pytest.raises(PolicyError) as refused:
        find_policy("my_policy:Mine")
    assert str(refused.value).startswith("policy my_policy:Mine: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("entries", "name", "says"),
    [
        (f"continuum = {PATH}", "continuum", f"policy name 'continuum' is taken: {PATH} of package my-package needs"),
        (f"other = {PATH}", "other", "has the name 'recompute'; both must be the same"),
        ("gone = nowhere:Gone", "gone", "policy gone (nowhere:Gone of package my-package): cannot import it"),
        (f"recompute = {PATH}", "recompute", "policy name 'recompute' is taken"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_refused(folder: Path, entries: str, name: str, says: str) -> None:
    install(folder, entries)
    if name == "recompute":
        install(folder, entries, "another-package")
    with pytest.raises(PolicyError, match=re.escape(says)):
        find_policy(name)


def test_true_and_false_on_a_command_line(folder: Path) -> None:
    (folder / "my_policy.py").write_text(OWN.replace("FIELD", "eager: bool = False"))
    mine: Any = find_policy("my_policy:Mine")
    assert read_options(mine, {"eager": "true"}) == {"eager": True}
    with pytest.raises(PolicyError, match="eager = 'yes': must be true or false"):
        read_options(mine, {"eager": "yes"})
