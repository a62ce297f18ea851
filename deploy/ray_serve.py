"""vLLM servers with our plugin behind Ray Serve: each replica starts one, and passes its requests on.

    serve run ray_serve:app replicas=2 command="vllm serve MODEL --port PORT"

Ray sends all requests with the same ``X-Session-ID`` to the same replica. Ray's environment needs this package and
psutil; ``vllm`` may be in another. Each replica puts a free port in place of ``PORT``.
"""

import asyncio
import os
import shlex
import socket
from collections.abc import AsyncIterator, Mapping

import aiohttp
from continuum_server.bound_process import BoundProcess
from pydantic import BaseModel
from ray import serve
from ray.serve.config import RequestRouterConfig
from starlette.requests import Request
from starlette.responses import StreamingResponse
from yarl import URL

ROUTER = RequestRouterConfig(
    request_router_class="ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
    request_router_kwargs={"num_fallback_replicas": 0},
)
"""Otherwise a replica that is asked for its load and needs over 0.1 s loses the request to another."""
OF_CONNECTION = ("connection", "content-length", "host", "keep-alive", "transfer-encoding")
"""Headers that are not passed on."""


class Options(BaseModel):
    """What ``serve run`` is told."""

    command: str
    """Starts a server that listens on port PORT."""
    replicas: int = 1
    gpus: float = 1.0
    """Of each replica."""


@serve.deployment(request_router_config=ROUTER, max_ongoing_requests=10_000)
class Engine:
    """A replica. Its server ends with it."""

    async def __init__(self, command: str) -> None:
        self._held = socket.socket()  # nobody else gets the port before the server listens on it
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        port = self._held.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._server = BoundProcess(shlex.split(command.replace("PORT", str(port))), os.environ, 1)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)  # vLLM closes idle connections after 5 s
        unlimited = aiohttp.ClientTimeout(total=None)
        self._http = aiohttp.ClientSession(auto_decompress=False, connector=connector, timeout=unlimited)
        while not await self._healthy():
            self.check_health()
            await asyncio.sleep(0.5)

    async def _healthy(self) -> bool:
        try:
            async with self._http.get(f"{self._url}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    def check_health(self) -> None:
        """Ray asks every ten seconds, and replaces a replica whose server has ended."""
        if self._server.ended is not None:
            raise RuntimeError(f"the server {self._server.ended}")

    async def __call__(self, request: Request) -> StreamingResponse:
        target = f"{self._url}{request.scope['raw_path'].decode()}"
        if request.url.query:
            target += f"?{request.url.query}"
        sent = {"data": await request.body(), "headers": _passed_on(request.headers)}
        answer = await self._http.request(request.method, URL(target, encoded=True), **sent)
        return StreamingResponse(_body(answer), answer.status, _passed_on(answer.headers))


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in OF_CONNECTION}


async def _body(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:  # closed early if the client leaves, so that vLLM stops too
        async for chunk in answer.content.iter_any():
            yield chunk


def app(options: Options) -> serve.Application:
    resources = {"num_cpus": 0, "num_gpus": options.gpus}
    return Engine.options(num_replicas=options.replicas, ray_actor_options=resources).bind(options.command)
