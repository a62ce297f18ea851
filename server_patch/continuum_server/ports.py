"""TCP ports of this machine: find free ones, hold one, ask whether a server answers on one."""

from __future__ import annotations

import errno
import http.client
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from continuum_server.server_config import ServerError


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Whether a GET is answered without an error in time. Proxies of the environment are not used."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s):
            return True
    except (OSError, http.client.HTTPException):
        return False


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that is bound there and does not listen, until it is closed.

    A server that we start can still listen there (as all servers it sets SO_REUSEADDR), but nobody gets this port when
    he asks for a free one. vLLM imports for seconds before it binds, and until then somebody else's server would answer
    our health checks.

    Args:
        host: an address of this machine.
        port: 0 for a free one.

    Raises:
        ServerError: somebody listens there, or it cannot be used.
    """
    with listening(host, port):
        held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, port))
        except BaseException:
            held.close()
            raise
        return held


def listens(process: int, port: int) -> bool:
    """Whether this process, or one that it or its children started, listens on that TCP port."""
    with suppress(psutil.Error):
        parent = psutil.Process(process)
        for one in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                connections = one.net_connections(kind="tcp")
                if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections):
                    return True
    return False


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
