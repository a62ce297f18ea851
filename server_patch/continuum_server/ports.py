"""TCP ports of this machine: find free ones, hold one, ask whether a server answers on one."""

from __future__ import annotations

import errno
import http.client
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from continuum_server.server_config import ServerError


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a GET is answered without an error in time. Proxies of the environment are not used."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s):
            return True
    except (OSError, http.client.HTTPException):
        return False


def free_ports(number: int) -> list[int]:
    """Different ports on which nothing listens at this moment."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def check_port(host: str, port: int) -> None:
    """See that a server can listen there.

    vLLM binds late: until then another process on this port would answer the server's health checks.

    Raises:
        ServerError: the port is taken or cannot be used.
    """
    hold_port(host, port).close()


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that listens there and so keeps other processes from it. Raises what ``check_port`` raises."""
    with listening(host, port):
        return socket.create_server((host, port))


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Turn a socket's error into a ``ServerError`` that says what to do."""
    try:
        yield
    except OverflowError as error:
        raise ServerError(f"port {port}: must be from 0 (a free one) to 65535") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"port {port} of {host} is taken; choose another (0: a free one)") from error
        raise ServerError(f"host {host}, port {port}: cannot listen there: {error.strerror}") from error
