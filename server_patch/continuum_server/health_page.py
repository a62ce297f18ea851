"""``GET /health`` for a whole fleet, as JSON. A thread of the process that started the fleet answers it."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler
from typing import Literal

from continuum_server.server_config import ServerState


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """The state of one server behind the router."""

    name: str
    url: str
    state: ServerState


@dataclass(frozen=True, slots=True)
class FleetHealth:
    """Whether a fleet serves its clients now."""

    status: Literal["serving", "degraded", "dead"]
    router: ServerState
    replicas: tuple[ReplicaHealth, ...]


def fleet_health(router: ServerState, replicas: tuple[ReplicaHealth, ...]) -> FleetHealth:
    """Combine the states of the router and the replicas.

    dead: the router or every replica does not serve. degraded: at least one replica does not serve.
    """
    serving = sum(replica.state == "serving" for replica in replicas)
    if router != "serving" or not serving:
        return FleetHealth("dead", router, replicas)
    return FleetHealth("serving" if serving == len(replicas) else "degraded", router, replicas)


class HealthPage:
    """A web server that answers ``/health``. It holds its port from its creation on and answers after ``start``.

    Args:
        host: address to listen on.
        port: 0 takes a free port.
        fleet_state: called for every request, in a thread of its own.

    Raises:
        OSError, OverflowError: the port cannot be used.
    """

    def __init__(self, host: str, port: int, fleet_state: Callable[[], FleetHealth]) -> None:
        self._server = _Listener((host, port), _handler(fleet_state))
        self.url = f"http://{host}:{self._server.server_address[1]}/health"
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close the port. May be called again."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def _handler(fleet_state: Callable[[], FleetHealth]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            if self.path != "/health":
                self.send_error(404)
                return
            health = fleet_state()
            body = json.dumps(asdict(health), indent=1).encode() + b"\n"
            self.send_response(503 if health.status == "dead" else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, because load balancers send a request every few seconds."""

    return Handler
