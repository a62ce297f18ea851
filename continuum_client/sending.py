"""Send requests of openai's clients with tags: of our own clients, and of all clients after ``instrument()``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import anyio
import openai
from continuum_traces.wire.urls import root_of

from continuum_client.call import GENERATING, Outgoing, call_for
from continuum_client.current import running_loop
from continuum_client.dialects import Release
from continuum_client.errors import once
from continuum_client.observe import NOT_RECORDED, job_of, watch
from continuum_client.options import ClientState
from continuum_client.own_requests import OWN_TIMEOUT_S, awaited
from continuum_client.program import Program

_OWN_OPTIONS: Any = {"timeout": OWN_TIMEOUT_S, "max_retries": 0}


async def send_tagged(
    state: ClientState,
    bound: Program | None,
    client: Any,
    send: Callable[..., Any],
    cast_to: Any,
    options: Any,
    stream: bool = False,
    stream_cls: Any = None,
) -> Any:
    """Send a request with ``send``; with tags, if it is a turn of a program.

    Args:
        state: what is known of the client's programs.
        bound: the program to which the client is bound, if it is bound.
        client: the openai client.
        send: openai's ``request``, whose arguments the others are.
    """
    plain = functools.partial(send, cast_to, options, stream=stream, stream_cls=stream_cls)
    call = None
    if options.url in GENERATING and options.method.lower() == "post":
        headers = options.headers if isinstance(options.headers, Mapping) else {}
        body = options.json_data if isinstance(options.json_data, Mapping) else None
        request = Outgoing(options.url, headers, body, options.extra_json, stream)
        call = call_for(state, bound, request, ClientSender(client))
    if call is None:
        job = job_of(state.jobs, options.url)
        result = await awaited(plain())
        if job is not None:
            once.guard(*NOT_RECORDED, lambda: watch(result, job))
        return result

    def send_request(tagged: Outgoing) -> Any:
        options.headers, options.extra_json = tagged.headers, tagged.extra_body
        return plain()

    return call.answered(await call.send(send_request))


class ClientSender:
    """Sends the own requests of an openai client."""

    def __init__(self, client: Any) -> None:
        self.url = str(client.base_url)
        self.asynchronous = isinstance(client, openai.AsyncOpenAI)
        self._client = client

    async def models(self) -> Any:
        try:
            return await awaited(self._client.get("/models", cast_to=object, options=_OWN_OPTIONS))
        except (openai.APIStatusError, openai.APITimeoutError):
            return None

    def post(self, release: Release, headers: Mapping[str, str]) -> None:
        """Send a release without an event loop, by another client if this one needs a loop or is closed."""
        if not self.asynchronous and not self._client.is_closed():
            self._post(self._client, release, headers)
        else:
            with self._twin() as twin:
                self._post(twin, release, headers)

    async def apost(self, release: Release, headers: Mapping[str, str]) -> None:
        """Send a release; if this client has no connection in the event loop, in a thread."""
        loops = self.asynchronous and not self._client.is_closed()
        await _to_its_end(
            self._post(self._client, release, headers)
            if loops
            else anyio.to_thread.run_sync(self.post, release, headers)
        )

    def _post(self, client: Any, release: Release, headers: Mapping[str, str]) -> Any:
        root = str(getattr(self._client, "_azure_endpoint", None) or root_of(self.url)).rstrip("/")
        options = {**_OWN_OPTIONS, "headers": headers}
        return client.post(root + release.path, cast_to=object, body=release.body, options=options)

    def _twin(self) -> openai.OpenAI:
        """Return a plain synchronous client with the same credentials and headers."""
        key = self._client.api_key or "none"
        azure = {"api-key": key} if hasattr(self._client, "_azure_endpoint") else {}
        return openai.OpenAI(
            base_url=self.url,
            api_key=key,
            organization=self._client.organization,
            project=self._client.project,
            default_headers={**azure, **self._client._custom_headers},
            default_query=self._client._custom_query,
        )


async def _to_its_end(sending: Coroutine[Any, Any, None]) -> None:
    """Await ``sending`` even if the caller is cancelled: by anyio at every await, or by asyncio once."""
    with anyio.CancelScope(shield=True):
        if running_loop() is None:  # trio
            return await sending
        task = asyncio.ensure_future(sending)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise
