"""A headless Chromium that tests steer: the DevTools protocol over a pipe, so that no port and no library is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)
LOOK = Path(__file__).with_name("look.js").read_text()
"""JavaScript: ``look``, what tests see and do on a page."""


class Browser:
    """One page at a time. Console messages of level warning and above, and uncaught errors, gather in ``complaints``;
    requests for anything but a file or data in ``requests``."""

    def __init__(self, profile: Path) -> None:
        read_theirs, self._out = os.pipe()
        self._in, write_theirs = os.pipe()
        shell = f"exec chromium {FLAGS} --user-data-dir='{profile}' about:blank 3<&{read_theirs} 4>&{write_theirs}"
        self._process = subprocess.Popen(
            ["bash", "-c", shell], pass_fds=(read_theirs, write_theirs), stderr=subprocess.DEVNULL
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._number = 0
        self._buffer = b""
        self._session: str | None = None
        self._happened: list[str] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=120)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: Any) -> Any:
        """One command and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 20)
            assert data, "chromium ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, params = message.get("method", ""), message.get("params", {})
        self._happened.append(method)
        console = params.get("type") if method == "Runtime.consoleAPICalled" else params.get("entry", {}).get("level")
        if method == "Runtime.exceptionThrown" or console in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params)[:500])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.requests.append(url)

    def open(self, page: Path, width: int = 1200, height: int = 900, dark: bool = False, touch: bool = False) -> None:
        """Load a file as on a screen of that size and wait until it has drawn itself."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._happened.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while "Page.loadEventFired" not in self._happened:
            self._next()
        self.evaluate(LOOK)
        self.settle()

    def settle(self) -> None:
        """Wait until the browser has drawn two frames. What was asked for is then on the screen."""
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        self.evaluate(frames)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def look(self, what: str, *arguments: Any) -> Any:
        """What a function of look.js gives."""
        return self.evaluate(f"look.{what}(...{json.dumps(arguments)})")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "PageDown": 34, "PageUp": 33}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra)
        self.settle()

    def mouse(self, kind: str, x: float, y: float) -> None:
        button = {"button": "left", "clickCount": 1} if kind != "mouseMoved" else {"button": "none"}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    made = Browser(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()
