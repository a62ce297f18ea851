"""Start, watch and stop several servers on one machine behind a router (``front``), which is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from continuum_traces.run_dir import replica_name
from continuum_traces.urls import address_of

from continuum_server.bound_process import BoundProcess
from continuum_server.launcher import HttpServer, Server, now_s
from continuum_server.ports import hold_port
from continuum_server.server_config import ServerConfig, ServerError

Say = Callable[[str], None]


def replica_configs(config: ServerConfig, replicas: int) -> list[ServerConfig]:
    """Return a configuration for each replica: a free port, and its own record folder, statistics file and GPUs.

    Raises:
        ServerError: there are fewer GPUs than the servers need.
    """
    devices = _devices(config, replicas)
    return [
        replace(
            config,
            port=0,
            host="127.0.0.1",
            record=config.record / replica_name(index) if config.record else None,
            statistics=replica_file(config.statistics, index) if config.statistics else None,
            devices=devices[index],
        )
        for index in range(replicas)
    ]


def replica_file(path: Path, index: int) -> Path:
    """Return the name of a replica's file: ``tools.json`` becomes ``tools.replica0.json``."""
    return path.with_name(f"{path.stem}.{replica_name(index)}{path.suffix}")


def _devices(config: ServerConfig, replicas: int) -> list[str | None]:
    """Return CUDA_VISIBLE_DEVICES of each replica; None: the engine uses no GPU."""
    if config.engine != "gpu":
        return [None] * replicas
    needed, visible = replicas * config.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(needed)]
    if len(devices) < needed:
        raise ServerError(
            f"{replicas} replicas of {config.gpus} GPUs need {needed}; CUDA_VISIBLE_DEVICES has {len(devices)}"
        )
    return [",".join(devices[index : index + config.gpus]) for index in range(0, needed, config.gpus)]


class Fleet:
    """Servers behind a router.

    Args:
        config: configuration of each server; ``host`` and ``port`` are the router's.
        replicas: number of servers.
        router: a name in ``ROUTERS`` (``virtual.routers``).
        logs: folder of ``replica0.log`` ... and ``router.log``; None: this process's stderr.
        say: called with a line of text when a replica is lost.

    Raises:
        ServerError: there are too few GPUs, a port is taken, or options exclude each other.
        RunDirError: a record cannot be written, or another server writes it.
    """

    def __init__(
        self,
        config: ServerConfig,
        replicas: int,
        router: str,
        logs: Path | None = None,
        say: Say = print,
    ) -> None:
        self.config = config
        self.servers: list[Server] = []
        self.router: HttpServer | None = None
        self._policy = router
        self._logs = logs
        self._say = say
        self._lost: set[int] = set()
        self._stopping = False
        self._held = hold_port(config.host, config.port)
        self.url = address_of(config.host, int(self._held.getsockname()[1]))
        try:
            for index, replica in enumerate(replica_configs(config, replicas)):
                self.servers.append(Server(replica, self._log(replica_name(index))))
        except BaseException:
            self.kill()
            raise

    def wait_until_healthy(self, timeout_s: float = 600.0) -> None:
        """Wait until the router and every server answer.

        Raises:
            ServerError: the router or a server died, or ``timeout_s`` passed.
        """
        deadline_s = now_s() + timeout_s
        for server in self.servers:
            server.wait_until_healthy(max(1.0, deadline_s - now_s()))
        command = [sys.executable, "-m", "continuum_server.front", "--policy", self._policy, "--host", self.config.host]
        command += ["--port", self.url.rpartition(":")[2], "--worker-urls", *(server.url for server in self.servers)]
        self.router = HttpServer("router", command, {}, self.config.host, self._held, self._log("router"))
        self.router.wait_until_healthy(max(1.0, deadline_s - now_s()), self._check_servers)

    def _check_servers(self) -> None:
        for index, server in enumerate(self.servers):
            how = server.how_it_ended()
            if how:
                raise ServerError(f"{replica_name(index)} was lost before the router was ready: it {how}")

    def wait(self, timeout_s: float) -> None:
        """Wait until all servers have ended after ``terminate`` or ``kill``.

        Raises:
            ServerError: the servers or the router ended by themselves. The message says how, and where the log is.
            subprocess.TimeoutExpired: a server still runs after ``timeout_s``.
        """
        deadline_s = now_s() + timeout_s
        while True:
            self._report_losses()
            if len(self._lost) == len(self.servers):
                if self._stopping:
                    return
                raise ServerError("all replicas have ended")
            if self.router is not None and self.router.ended and not self._stopping:
                raise ServerError(f"the router {self.router.how_it_ended()}")
            if now_s() >= deadline_s:
                raise subprocess.TimeoutExpired("serve", timeout_s)
            time.sleep(0.1)

    def terminate(self) -> None:
        """Ask the servers to finish their requests and stop. The router still delivers the answers. Does not wait."""
        self._stopping = True
        for server in self.servers:
            server.terminate()

    def kill_group(self) -> None:
        """Send SIGKILL to all processes. Does not wait, so a signal handler may call it."""
        self._stopping = True
        for process in self._processes():
            process.kill_group()

    def kill(self) -> None:
        """Kill all processes and wait for their end."""
        self.kill_group()
        for process in self._processes():
            process.kill()
        self._held.close()

    def _processes(self) -> list[BoundProcess]:
        return [*self.servers, *([self.router] if self.router is not None else [])]

    def _report_losses(self) -> None:
        for index, server in enumerate(self.servers):
            how = server.how_it_ended()
            if how and index not in self._lost:
                self._lost.add(index)
                if not self._stopping:
                    left = len(self.servers) - len(self._lost)
                    self._say(f"{replica_name(index)} {how}; replicas left: {left}")
                server.kill()  # child processes may still run

    def _log(self, name: str) -> Path | None:
        return self._logs / f"{name}.log" if self._logs is not None else None
