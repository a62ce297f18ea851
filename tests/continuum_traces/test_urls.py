"""URLs of servers: https, IPv6, base paths, queries, and the web proxies of the environment."""

from __future__ import annotations

import pytest
from continuum_traces.wire.urls import address_of, base_of, checked_url, joined, root_of, web_proxy_of


@pytest.mark.parametrize(
    ("host", "port", "scheme", "url"),
    [
        ("127.0.0.1", 8000, "http", "http://127.0.0.1:8000"),
        ("::1", 8000, "https", "https://[::1]:8000"),
        ("0.0.0.0", 1, "http", "http://127.0.0.1:1"),
        ("::", 1, "http", "http://[::1]:1"),
        ("node-7.example", 65535, "https", "https://node-7.example:65535"),
    ],
)
def test_the_address_of_a_listening_server(host: str, port: int, scheme: str, url: str) -> None:
    assert address_of(host, port, scheme) == url


@pytest.mark.parametrize(
    ("url", "base", "root"),
    [
        ("http://h:8000", "http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/", "http://h:8000/v1", "http://h:8000"),
        ("http://h/v1/", "http://h/v1", "http://h"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://h/api/paas/v4", "https://h/api/paas/v4", "https://h/api/paas/v4"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai", "https://h/v1beta"),
        ("https://h/openai/v1", "https://h/openai/v1", "https://h/openai"),
        ("https://h/openai/deployments/d?api-version=1", "https://h/openai/deployments/d?api-version=1", "https://h"),
        ("https://h/team/v1", "https://h/team/v1", "https://h/team"),
    ],
)
def test_base_and_root(url: str, base: str, root: str) -> None:
    assert (base_of(url), root_of(base_of(url))) == (base, root)


def test_a_query_stays_behind_the_path() -> None:
    assert joined("https://h/openai/deployments/d?api-version=1", "/models") == (
        "https://h/openai/deployments/d/models?api-version=1"
    )
    assert joined("http://[::1]:1/v1/", "/models") == "http://[::1]:1/v1/models"


@pytest.mark.parametrize(
    ("url", "full"), [("h:1", "http://h:1"), ("https://h", "https://h"), ("[::1]:9", "http://[::1]:9")]
)
def test_a_url_may_lack_its_scheme(url: str, full: str) -> None:
    assert checked_url(url) == full


@pytest.mark.parametrize("url", ["", "http://", "ftp://h", "h:0", "h:65536", "http://[::1", "h:x"])
def test_what_is_no_url_of_a_server(url: str) -> None:
    with pytest.raises(ValueError, match=r"^upstream .*expected a URL"):
        checked_url(url, "upstream")


def test_a_web_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "NO_PROXY",
        "no_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    assert web_proxy_of("http://model.example/v1") is None
    monkeypatch.setenv("http_proxy", "web.example:3128")
    assert web_proxy_of("http://model.example/v1") == "http://web.example:3128"
    assert web_proxy_of("https://model.example/v1") is None  # HTTPS_PROXY is for these
    for here in ("http://localhost:8000", "http://127.0.0.2", "http://[::1]:1/v1"):
        assert web_proxy_of(here) is None
    monkeypatch.setenv("no_proxy", "model.example")
    assert web_proxy_of("http://model.example:8000") is None
    monkeypatch.setenv("all_proxy", "socks5://web.example:1080")
    with pytest.raises(ValueError, match=r"^ALL_PROXY 'socks5://web.example:1080': expected a URL"):
        web_proxy_of("https://other.example")
