"""A server over TLS and on IPv6: the printed addresses work as they are."""

from __future__ import annotations

import ssl
import subprocess
import urllib.request
from pathlib import Path

import pytest
from continuum_server.launcher import Server, client_line
from continuum_server.server_config import ServerConfig


@pytest.mark.slow
def test_a_server_on_ipv6_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate]
    named = ["-days", "3", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:::1"]
    subprocess.run([*map(str, made), *named], check=True, capture_output=True)
    tls = ("--ssl-keyfile", str(key), f"--ssl-certfile={certificate}")
    config = ServerConfig(host="::1", port=0, vllm_arguments=tls)
    with Server(config, tmp_path / "log") as server:
        assert server.url == f"https://[::1]:{server.port}"
        assert f'base_url="{server.url}/v1"' in client_line(server.url, config)
        trusting = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(f"{server.url}/continuum/state", context=trusting, timeout=60.0) as answer:
            assert answer.status == 200
