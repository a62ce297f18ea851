"""A pytest plugin: ``pytest -p continuum_client.pytest_plugin --continuum-record DIR``.

Each test is a program, and the calls of all tests become a trace. The plugin works with every openai
client that the tests make. The program id of a test is its node id.
"""

from __future__ import annotations

from typing import Any

import pytest

MAX_ID_CHARS = 200
_instrumentation = pytest.StashKey[Any]()
_program = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("continuum")
    group.addoption("--continuum-record", metavar="DIR", help="record each test's calls of a model to DIR, as a trace")
    group.addoption("--continuum-dialect", metavar="NAME", help="how tags are sent (default: $CONTINUUM_DIALECT)")


def pytest_configure(config: pytest.Config) -> None:
    record = config.getoption("--continuum-record")
    if record:
        from continuum_client.instrumentation import instrument  # noqa: PLC0415 - openai takes a second to import

        try:
            config.stash[_instrumentation] = instrument(record=record, dialect=config.getoption("--continuum-dialect"))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    if _instrumentation in config.stash:
        from continuum_client.instrumentation import uninstrument  # noqa: PLC0415

        uninstrument()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    instrumentation = item.config.stash.get(_instrumentation, None)
    if instrumentation is not None:
        item.stash[_program] = instrumentation.program(program_id_of(item.nodeid)).__enter__()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    program = item.stash.get(_program, None)
    if program is not None:
        program.__exit__()


def program_id_of(node_id: str) -> str:
    """Return the program id of a test: its node id with ``_`` for all but printable ASCII, cut at the start if long."""
    return "".join(char if char.isascii() and char.isprintable() else "_" for char in node_id).strip()[-MAX_ID_CHARS:]
