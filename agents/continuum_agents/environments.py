"""Make one Python environment for each agent framework, because their requirements conflict. All versions are pinned.

Standard library only: this module runs in the harness, where no framework can be imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

PINS = Path(__file__).with_name("pins")
FOLDER_VARIABLE = "CONTINUUM_AGENTS_DIR"
DISTRIBUTION = "continuum-ttl"
PYTHON = "bin/python"
PACKAGES = ("continuum_agents", "continuum_client", "continuum_traces")
"""The packages of this project that an agent's process imports."""

VARIABLES = {
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Options of the frameworks and of LiteLLM: accept unknown models, print no banner, download no list of prices."""

Say = Callable[[str], None]


class AgentEnvironmentError(Exception):
    """An environment is missing or cannot be made. The message says what to do."""


class NoPython(AgentEnvironmentError):
    """This machine has no Python on which the framework runs."""


@dataclass(frozen=True, slots=True)
class Framework:
    """An agent framework that ``continuum-bench agent`` can run."""

    name: str
    runner: str
    """The module that the harness starts in the framework's environment."""
    distribution: str
    """The framework's package, whose version is in the manifest."""
    pythons: tuple[tuple[int, int], tuple[int, int]] = ((3, 10), (3, 15))
    """The oldest Python on which the framework runs, and the first later version on which it does not run."""
    config: tuple[str, ...] = ()
    """The framework's default configuration files."""

    def variables(self) -> dict[str, str]:
        """Return environment variables with which the framework asks no questions and writes nothing to the user's
        home."""
        config = str(environments_folder() / f"{self.name}-config")
        folders = ("MSWEA_GLOBAL_CONFIG_DIR", "BFCL_PROJECT_ROOT", "OH_PERSISTENCE_DIR")
        return {**dict.fromkeys(folders, config), **VARIABLES}

    @property
    def pins(self) -> Path:
        """The requirements file; all versions are pinned."""
        return PINS / f"{self.name}.txt"

    @property
    def setup_command(self) -> str:
        return f"continuum-bench agent setup {self.name}"

    @property
    def pinned_version(self) -> str:
        if self.distribution == DISTRIBUTION:
            return version(DISTRIBUTION)
        wanted = f"{self.distribution}=="
        lines = self.pins.read_text(encoding="utf-8").splitlines()
        return next(line.removeprefix(wanted) for line in lines if line.startswith(wanted))


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("mini-swe", "continuum_agents.mini_swe", "mini-swe-agent", config=("swebench.yaml",)),
        Framework("bfcl", "continuum_agents.bfcl", "bfcl-eval", ((3, 10), (3, 13))),
        Framework("openhands", "continuum_agents.openhands", "openhands-sdk", ((3, 12), (3, 14))),
    )
}

COMMAND = Framework("command", "continuum_agents.command", DISTRIBUTION)
"""Any command. It runs in the harness's own environment, so no environment is made for it."""


def source_root() -> Path | None:
    """Return the checkout from which this package is used; None if the package was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def environments_folder() -> Path:
    """Return the folder of the environments: $CONTINUUM_AGENTS_DIR, else .agents in the checkout, else in the user's
    cache."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    root = source_root()
    if root is not None:
        return root / ".agents"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "continuum" / "agents"


def find_framework(name: str) -> Framework:
    """Return the framework with a name.

    Raises:
        AgentEnvironmentError: no framework has that name.
    """
    if name not in FRAMEWORKS:
        raise AgentEnvironmentError(f"no agent framework {name!r}; there are: {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


def python_of(framework: Framework) -> Path:
    """Return the interpreter of a framework's environment.

    Raises:
        AgentEnvironmentError: the environment is missing, or was made from other pins. The message contains the command
            that makes it.
    """
    folder = environments_folder() / framework.name
    python = folder / PYTHON
    if not python.exists():
        raise AgentEnvironmentError(
            f"no environment for {framework.name} in {folder}; make it with: {framework.setup_command}"
        )
    if not is_current(framework):
        raise AgentEnvironmentError(
            f"{folder} was made from other versions than {framework.pins.name} has now; make it again with: "
            f"{framework.setup_command}"
        )
    return python


def is_current(framework: Framework) -> bool:
    """Return whether the environment exists and was made from the current pins."""
    stamp = _stamp(environments_folder() / framework.name)
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _wanted(framework)


def set_up(framework: Framework, say: Say, anew: bool = False) -> Path:
    """Make a framework's environment, unless it is current. Return its interpreter.

    Args:
        framework: the framework.
        say: called with each line of progress.
        anew: make the environment even if it is current.

    Raises:
        NoPython: this machine has no Python on which the framework runs.
        AgentEnvironmentError: an installer failed; the message ends with its last lines of output.
    """
    folder = environments_folder() / framework.name
    if is_current(framework) and not anew:
        say(f"{framework.name}: {folder} is current")
        return folder / PYTHON
    base = find_python(framework)
    say(f"{framework.name}: making {folder} ({framework.distribution} {framework.pinned_version})")
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = _uv()
    _run([*uv, "venv", "-q", "--python", base, str(folder)] if uv else [base, "-m", "venv", str(folder)])
    install = _installer(uv, folder / PYTHON)
    _run([*install, "--no-deps", "-r", str(framework.pins)])  # the pins list every dependency that is used
    root = source_root()
    if root is not None:
        _run([*install, "--no-deps", "-e", str(root)])
    else:
        _copy_ourselves(folder)
    _stamp(folder).write_text(_wanted(framework), encoding="utf-8")
    say(f"{framework.name}: done")
    return folder / PYTHON


def find_python(framework: Framework) -> str:
    """Return an interpreter on which the framework runs: this one if possible, else one that pyenv or uv has.

    Raises:
        NoPython: this machine has no such interpreter, or no uv.
    """
    oldest, too_new = (f"{major}.{minor}" for major, minor in framework.pythons)
    if framework.pythons[0] <= sys.version_info[:2] < framework.pythons[1]:
        return sys.executable
    uv = _uv()
    if uv:
        wanted = [*uv, "python", "find", "--no-project", "--no-python-downloads", f">={oldest},<{too_new}"]
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")  # uv reads its shims only, which may fail
        path = [*map(str, sorted(pyenv.glob("versions/*/bin"))), os.environ.get("PATH", "")]
        seen = {**os.environ, "PATH": os.pathsep.join(path)}
        output = subprocess.run(wanted, capture_output=True, text=True, cwd=Path.home(), env=seen).stdout.strip()
        if output:
            return output
    raise NoPython(
        f"{framework.name} needs Python {oldest} or later, before {too_new}, and neither pyenv nor uv has one; "
        f"install one (pip install uv; uv python install {oldest}), then: {framework.setup_command}"
    )


def _stamp(folder: Path) -> Path:
    return folder / "continuum-environment.txt"


def _wanted(framework: Framework) -> str:
    """Return the text of a current environment's stamp: the pins, and pip's argument for this project."""
    root = source_root()
    ourselves = f"-e {root}" if root is not None else f"{DISTRIBUTION}=={version(DISTRIBUTION)}"
    return framework.pins.read_text(encoding="utf-8") + f"\n# with {ourselves}\n"


def _copy_ourselves(folder: Path) -> None:
    """Copy the packages of an agent's process from this installation, because their wheel may not be on any index."""
    (to,) = folder.glob("lib/python3*/site-packages")
    for name in PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, to / name, ignore=shutil.ignore_patterns("__pycache__"))


def _uv() -> list[str]:
    """Return the command of a working uv: the user's, or that of ``make setup``; empty if there is none."""
    root = source_root()
    for uv in (shutil.which("uv"), str(root / ".uv/bin/uv") if root else None):
        if uv and Path(uv).exists() and subprocess.run([uv, "--version"], capture_output=True).returncode == 0:
            return [uv]
    return []


def _installer(uv: Sequence[str], python: Path) -> list[str]:
    """Return the command that installs packages. uv does not read PIP_FIND_LINKS, pip's folder of wheels."""
    pip = [*uv, "pip", "install", "-q", "--compile-bytecode", "--python", str(python)] if uv else []
    links = os.environ.get("PIP_FIND_LINKS")
    return [*(pip or [str(python), "-m", "pip", "install", "-q"]), *(["--find-links", links] if links else [])]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        end = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise AgentEnvironmentError(f"{' '.join(command[:4])} ... failed:\n{end}")
