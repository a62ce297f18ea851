"""A process and all it started end with the one that started it. Real processes, no server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from continuum_server.bound_process import BoundProcess
from continuum_server.ports import hold_port
from live_server import MARK, ends_soon, sessions_of

STUBBORN = "trap '' TERM; sleep 1000 & echo started; wait; sleep 1000"
LEADER_GONE = "(trap '' TERM; sleep 1000) & echo started"
ORDERLY = "trap 'echo asked; kill $!; exit 0' TERM; sleep 1000 & echo started; wait"

OWNER = """
import os, sys, threading, time
from continuum_server.bound_process import BoundProcess
made = []
starts = threading.Thread(target=lambda: made.append(BoundProcess(["sh", "-c", sys.argv[1]], os.environ, 1)))
starts.start()
starts.join()  # the end of this thread is not the end of the process
time.sleep(1000)
"""


def owner(folder: Path, script: str) -> subprocess.Popen[str]:
    """A process that started the script, and the script is at work."""
    environment = {**os.environ, MARK: str(folder)}
    started = subprocess.Popen(
        [sys.executable, "-c", OWNER, script],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "started\n"
    return started


@pytest.mark.parametrize("script", [pytest.param(STUBBORN, marks=pytest.mark.slow), LEADER_GONE, ORDERLY])
def test_nothing_outlives_a_killed_owner(tmp_path: Path, script: str) -> None:
    started = owner(tmp_path, script)
    sessions = sessions_of(tmp_path)
    assert len(sessions) == 3  # the owner's, the watcher's, the script's
    started.kill()
    assert ends_soon(sessions) == []
    output, _ = started.communicate()
    assert output == ("asked\n" if script == ORDERLY else "")  # one that ends when asked is not killed


def test_what_ended_says_how_and_the_watcher_ends_too(tmp_path: Path) -> None:
    environment = {**os.environ, MARK: str(tmp_path)}
    for script, how in (("exit 3", "ended by itself with status 3"), ("kill -KILL $$", "was killed by signal 9")):
        bound = BoundProcess(["sh", "-c", script], environment, subprocess.DEVNULL)
        assert bound.process.wait() in (3, -signal.SIGKILL)
        assert bound.ended == how
        bound.kill()
        bound.kill()
    assert sessions_of(tmp_path) == set()


LISTENS = """
import os, socket, threading, time
listening = socket.create_server(("127.0.0.1", 0))
read, write = os.pipe()
if os.fork() == 0:
    for _ in range(8):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    held = bytearray(1 << 29)
    held[::4096] = b"x" * len(held[::4096])  # memory whose release takes the system a while
    os.write(write, b"x")
os.read(read, 1)
print(listening.getsockname()[1], flush=True)
os.read(read, 1)
"""


@pytest.mark.parametrize("command", [["sh", "-c", STUBBORN.replace("started", "0")], [sys.executable, "-c", LISTENS]])
def test_killing_reaches_what_it_started_and_frees_its_port(tmp_path: Path, command: list[str]) -> None:
    """Also where a child process holds the port and ends later than the server itself."""
    bound = BoundProcess(command, {**os.environ, MARK: str(tmp_path)}, subprocess.PIPE)
    assert bound.process.stdout is not None
    port, sessions = int(bound.process.stdout.readline()), sessions_of(tmp_path)
    if not port:  # stubborn
        bound.terminate()
        assert bound.ended is None
    bound.kill()
    bound.process.stdout.close()
    hold_port("127.0.0.1", port).close()
    assert ends_soon(sessions) == []
