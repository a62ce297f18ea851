"""A plugin of pytest for vLLM's own tests: runs each test with vLLM's scheduler, and if it passes there and created a
scheduler, with ours under each policy. ``test_vllm_suite.py`` copies it beside them."""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import vllm.model_executor.models.registry
import vllm.platforms
from _pytest.runner import runtestprotocol
from vllm.platforms.cpu import CpuPlatform

if vllm.platforms.current_platform.is_unspecified():  # a build for CUDA on a machine without a GPU
    vllm.platforms.current_platform = CpuPlatform()
    # vLLM starts a process to inspect a model's class. There this platform is not set, so it is inspected here
    vllm.model_executor.models.registry._run_in_subprocess = lambda look: look()

from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.scheduler import AsyncProgramScheduler, Discard, ProgramScheduler
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

STOCK = "stock"
POLICIES = os.environ["POLICIES"].split()
OUTCOMES = Path(os.environ["OUTCOMES"])
"""Where the outcomes of tests that create a scheduler are written: ``{test: {scheduler: outcome}}``."""
CREATED: list[object] = []
"""The schedulers of the present test."""
outcomes: dict[str, dict[str, str]] = {}


def ours(kind: type[Any], policy: str) -> type[Any]:
    """Our scheduler with this policy. What the wall catches in a server fails the test."""

    class Ours(kind):  # type: ignore[misc]
        knows_future = True

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
            config.additional_config = {**config.additional_config, **Settings(policy).to_config()}
            super().__init__(*args, **kwargs)
            ticks = itertools.count()
            self.attach(lambda: 1e-3 * next(ticks), Discard())  # holds end alike on slow machines

    return Ours


SCHEDULERS: dict[str, tuple[type[Any], type[Any]]] = {
    STOCK: (Scheduler, AsyncScheduler),
    **{policy: (ours(ProgramScheduler, policy), ours(AsyncProgramScheduler, policy)) for policy in POLICIES},
}


def noted(create: Callable[..., None]) -> Callable[..., None]:
    def init(self: Scheduler, *args: Any, **kwargs: Any) -> None:
        CREATED.append(self)
        create(self, *args, **kwargs)

    return init


Scheduler.__init__ = noted(Scheduler.__init__)  # type: ignore[method-assign]


@pytest.fixture
def default_vllm_config() -> Iterator[VllmConfig]:
    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


def pytest_collection_finish() -> None:
    """Prefix caching is on unless a test says otherwise: without it no KV can be held."""
    gc.freeze()  # each scheduler has thousands of blocks; to look through all modules for garbage takes a second
    for module in modules_of_tests():
        for name, function in vars(module).items():
            if name.startswith("create_scheduler"):
                cache_prefixes(function)


def cache_prefixes(create: Any) -> None:
    names = create.__code__.co_varnames[: create.__code__.co_argcount]
    defaults = dict(zip(reversed(names), reversed(create.__defaults__ or ()), strict=False))
    if "enable_prefix_caching" in defaults:
        defaults["enable_prefix_caching"] = True
        create.__defaults__ = tuple(reversed(defaults.values()))


def modules_of_tests() -> list[ModuleType]:
    return [module for name, module in [*sys.modules.items()] if name.startswith("tests.v1.")]


def use(schedulers: tuple[type[Any], type[Any]]) -> None:
    """Put these in the place of vLLM's wherever a module of the tests has them by name."""
    for namespace in map(vars, modules_of_tests()):
        for scheduler, known in zip(schedulers, ("Scheduler", "AsyncScheduler"), strict=True):
            if known in namespace:
                namespace[known] = scheduler


def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool:
    for name, schedulers in SCHEDULERS.items():
        CREATED.clear()
        use(schedulers)
        if name != STOCK:
            item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=name == STOCK)
        if name == STOCK and not CREATED:
            break
        failed = [report for report in reports if not report.passed]
        outcomes.setdefault(item.nodeid, {})[name] = f"{failed[0].outcome}: {failed[0].longreprtext}" if failed else ""
        if failed and name == STOCK:
            break
    return True


def pytest_sessionfinish() -> None:
    OUTCOMES.write_text(json.dumps(outcomes))
