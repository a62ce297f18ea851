"""TCP ports of this machine: find a free port, hold a port, ask whether a server answers on it."""

from __future__ import annotations

import errno
import http.client
import socket
import ssl
import urllib.request
from contextlib import suppress

import psutil

from continuum_server.server_config import ServerError


def answers(url: str) -> bool:
    """Whether a GET request to a server of this machine succeeds within two seconds. Proxies that the environment names
    are not used, and a certificate is not checked: it need not be made for this address."""
    trusting = urllib.request.HTTPSHandler(context=ssl._create_unverified_context())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusting)
    try:
        with opener.open(url, timeout=2.0):
            return True
    except (OSError, http.client.HTTPException):
        return False


def hold_port(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the port and does not listen. The caller closes it.

    A server that we start can still listen on this port, because it sets SO_REUSEADDR, as all servers do. But the
    operating system does not give the port to a process that asks for a free one. Without the socket such a process
    could take the port while vLLM is being imported, and would answer our health checks.

    Args:
        host: an address of this machine.
        port: 0 for a free port.

    Raises:
        ServerError: a server listens on the port already, or the port cannot be used.
    """
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except OverflowError as error:
        held.close()
        raise ServerError(f"port {port}: must be from 0 (a free one) to 65535") from error
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"port {port} of {host} is taken; choose another (0: a free one)") from error
        raise ServerError(f"host {host}, port {port}: cannot listen there: {error.strerror}") from error
    return held


def listens(process: int, port: int) -> bool:
    """Whether the process with this id, or one of its descendants, listens on a TCP port."""
    with suppress(psutil.Error):
        parent = psutil.Process(process)
        for member in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                sockets = member.net_connections(kind="tcp")
                if any(tcp.status == psutil.CONN_LISTEN and tcp.laddr.port == port for tcp in sockets):
                    return True
    return False
