"""URLs of model servers: built and taken apart here and nowhere else, for https, IPv6 and any base path.

A *base URL* is what openai's client takes, such as ``http://localhost:8000/v1`` or ``https://host/api/paas/v4``. A
server's *root* is its base URL without ``/v1``: the place of vLLM's ``/health`` and of ``/continuum/state``.
"""

from __future__ import annotations

import re
import urllib.request
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that are no addresses to call, with this machine's own."""


def address_of(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL, without a path, by which this machine reaches a server that listens on ``host`` and ``port``."""
    host = _ANY.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def checked_url(url: str, what: str = "URL") -> str:
    """Return the URL of a server; ``http://`` is added to ``HOST:PORT``.

    Raises:
        ValueError: it is not the URL of a server; the message begins with ``what``.
    """
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return full
    except ValueError:  # the port or the brackets
        pass
    raise ValueError(f"{what} {url!r}: expected a URL such as http://127.0.0.1:8000")


def base_of(url: str) -> str:
    """Return a server's base URL. Only a URL without a path gets ``/v1``; a query is kept."""
    parts = urlsplit(url)
    return _with_path(parts, parts.path.rstrip("/") or "/v1")


def root_of(url: str) -> str:
    """Return the root of a server: its base URL without ``/v1``, Azure deployment, query and trailing slash."""
    parts = urlsplit(url)
    path = re.sub(r"/openai(/deployments/[^/]+)?$", "", parts.path.rstrip("/"))
    return _with_path(parts._replace(query=""), path.removesuffix("/v1"))


def path_of(url: str) -> str:
    """Return the path of a URL without a trailing slash; empty if it has none."""
    return urlsplit(url).path.rstrip("/")


def joined(base: str, path: str) -> str:
    """Return the URL of ``path`` below a base URL. A query of the base URL stays at the end, as Azure needs it."""
    parts = urlsplit(base)
    return _with_path(parts, parts.path.rstrip("/") + path)


def web_proxy_of(url: str) -> str | None:
    """Return the web proxy that the environment names for a server; None for a server on this machine.

    Raises:
        ValueError: the variable is not the URL of an http proxy.
    """
    parts = urlsplit(url)
    if _is_here(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = urllib.request.getproxies()
    name = next((name for name in (parts.scheme, "all") if name in proxies), None)
    return None if name is None else checked_url(proxies[name], f"{name.upper()}_PROXY")


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _with_path(parts: SplitResult, path: str) -> str:
    return parts._replace(path=path, fragment="").geturl()
