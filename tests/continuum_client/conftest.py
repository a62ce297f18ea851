"""Servers for the client's tests, and a process that forgets between them what it learnt of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest
from fake_server import FakeServer

from continuum_client import OpenAI, current, instrument, recorder, uninstrument
from continuum_client.endpoints import endpoints
from continuum_client.errors import once

collect_ignore = [] if find_spec("vllm") else ["test_real_vllm.py", "test_frameworks_on_vllm.py"]
"""All other tests of the client need openai and the ``dev`` group only."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTINUUM_DIALECT", raising=False)
    monkeypatch.delenv("CONTINUUM_RECORD", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.001)
    endpoints._servers.clear()
    once._given.clear()
    recorder._recorders.clear()
    current.variable.set(None)  # dropped generators of an earlier test may have left their program behind


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    """Start a fake: ``serve("vllm")``; all are stopped at the end."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(FakeServer(*args, **kwargs))


@pytest.fixture
def vllm(serve: Callable[..., FakeServer]) -> FakeServer:
    return serve("vllm")


@pytest.fixture
def client(vllm: FakeServer) -> OpenAI:
    return OpenAI(base_url=vllm.url, dialect="vllm", implicit=False)


@pytest.fixture
def instrumented() -> Iterator[None]:
    """Threads inherit programs; calls outside programs stay as they are."""
    instrument(implicit=False)
    yield
    uninstrument()


@pytest.fixture
def server(serve: Callable[..., FakeServer]) -> FakeServer:
    """OpenAI's own schema: nothing but the standard fields."""
    return serve("openai")
