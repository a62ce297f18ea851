"""The part of our clients that sends requests with tags, synchronous and asynchronous.

``request()`` is the only overridden method that sends requests. openai's resources call it once for each call, and
openai's retries happen inside it, so that a retry has the same tags.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, overload

import anyio
import openai
from continuum_traces.urls import root_of

from continuum_client.call import call_for
from continuum_client.current import running_loop
from continuum_client.decorators import F, around
from continuum_client.ending import close_all
from continuum_client.endpoints import endpoints
from continuum_client.errors import InvalidTag
from continuum_client.exchange import ASK_TIMEOUT_S, Post, done, releasing, run
from continuum_client.hook import hook
from continuum_client.program import Program
from continuum_client.settings import OPTIONS, ClientSettings, ProgramOptions, settings_from
from continuum_client.tagging import check_id

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from typing_extensions import Self, Unpack

_ASK_OPTIONS: Any = {"timeout": ASK_TIMEOUT_S, "max_retries": 0}

SETTINGS = "_continuum_settings"
"""The constructor argument by which ``copy()`` passes a client's settings to the copy."""


class Tagging:
    """The methods that both clients share. The class precedes openai's class in the order of bases."""

    _continuum: ClientSettings
    _bound: Program | None = None
    _timeouts: tuple[type[BaseException], ...] = (openai.APITimeoutError,)
    base_url: Any

    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            ours = {name: options.pop(name) for name in OPTIONS if name in options}
            self._continuum = options.pop(SETTINGS, None) or settings_from(**ours)
            super().__init__(**options)

        def copy(self, **options: Any) -> Any:
            """Copy the client as openai does. The copy has this client's settings, and is bound to the same program."""
            more = {SETTINGS: self._continuum, **options.pop("_extra_kwargs", {})}
            twin = super().copy(**options, _extra_kwargs=more)
            twin._bound = self._bound
            return twin

        with_options = copy

    @overload
    def program(self, program_id: F, /) -> F: ...

    @overload
    def program(self, program_id: str | None = None, **options: Unpack[ProgramOptions]) -> Program: ...

    def program(self, program_id: Any = None, **options: Unpack[ProgramOptions]) -> Any:
        """Open a program: one run of an agent. Calls in the body of ``with client.program(...)`` are its turns.

        As the decorator ``@client.program`` it makes each call of a function a program of its own, with a random id;
        as ``@client.program("name")`` with an id that begins with the name.

        Args:
            program_id: 1 to 256 printable ASCII characters. Default: a random id.
            predict: a function that predicts the next tool (``prediction.Predict``). Default: the client's.
            parent: the program that starts this program, or its id. Default: the current program, if there is one.
            output_tokens: expected length of each answer, in tokens; sent by the dialect ``dynamo``.
            metadata: at most 16 texts and numbers by name, for the record only; nothing of it is sent.

        Raises:
            InvalidTag: an id, a name or a number cannot be sent, or the metadata is too large.
        """
        if callable(program_id):
            return around(program_id, self.program, Program._paused)
        program = self._continuum.program(program_id, **options)
        program.home = cast("Any", self)
        hook.install()
        return program

    def resume(self, handoff: str) -> Program:
        """Continue a program that another process has ended with ``program.handoff()``.

        Args:
            handoff: the text that ``handoff()`` returned there.

        Raises:
            InvalidTag: the text is not from ``handoff()``.
        """
        try:
            facts = json.loads(handoff)
            check_id(facts["program_id"])
            return self.program(facts["program_id"], parent=facts["parent_id"], metadata=facts.get("metadata"))
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidTag(f"resume: expected the text from program.handoff(): {error!r}") from error

    def bind(self, program: Program) -> Self:
        """Return a copy of this client whose calls all belong to ``program``, in any thread or task."""
        twin = cast("Any", self).copy()
        twin._bound = program
        return cast("Self", twin)

    async def _exchange(
        self, send: Callable[..., Any], cast_to: Any, options: Any, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """Send a request with ``send``; with tags, if it is a turn of a program."""
        call = call_for(self._continuum, self._bound, options, str(self.base_url))
        plain = functools.partial(send, cast_to, options, stream=stream, stream_cls=stream_cls)
        if call is None:
            return await done(plain())
        return call.answered(await call.send(cast("Any", self), stream, plain))

    def _models(self) -> Any:
        return cast("Any", self).get("/models", cast_to=object, options=_ASK_OPTIONS)

    def _post(self, to: str, body: Mapping[str, Any]) -> Any:
        return cast("Any", self).post(to, cast_to=object, body=body, options=_ASK_OPTIONS)

    def _releasing(self, program_id: str, post: Post) -> Coroutine[Any, Any, None]:
        url = str(self.base_url)
        dialect = self._continuum.dialect or endpoints.dialect_of(url)
        root = str(getattr(self, "_azure_endpoint", None) or root_of(url))
        return releasing(program_id, dialect, url, root, post)

    def _release_apart(self, program_id: str) -> None:
        """Send the release by a synchronous client that is made for this request."""
        run(self._releasing(program_id, self._post_apart))

    def _post_apart(self, to: str, body: Mapping[str, Any]) -> None:
        this = cast("Any", self)
        key = this.api_key or "none"
        own = {"api-key": key} if hasattr(self, "_azure_endpoint") else {}
        with openai.OpenAI(
            base_url=self.base_url,
            api_key=key,
            organization=this.organization,
            project=this.project,
            default_headers={**own, **this._custom_headers},
            default_query=this._custom_query,
        ) as plain:
            plain.post(to, cast_to=object, body=body, options=_ASK_OPTIONS)


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


class SyncTagging(Tagging):
    if not TYPE_CHECKING:

        def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            return self._send(super().request, cast_to, options, stream, stream_cls)

        def close(self) -> None:
            """Release the programs that were opened for conversations, and close the client as openai does."""
            close_all(self._continuum.forget_conversations())
            super().close()

    def _send(self, send: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return run(self._exchange(send, *args, **options))

    def _release(self, program_id: str) -> None:
        run(self._releasing(program_id, self._post_apart if cast("Any", self).is_closed() else self._post))

    _release_blocking = _release


class AsyncTagging(Tagging):
    if not TYPE_CHECKING:

        async def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            return await self._send(super().request, cast_to, options, stream, stream_cls)

        async def close(self) -> None:
            """Release the programs that were opened for conversations, and close the client as openai does."""
            async with anyio.create_task_group() as tasks:
                for program in self._continuum.forget_conversations():
                    tasks.start_soon(program.aclose)
            await super().close()

    _send, _release_blocking = Tagging._exchange, Tagging._release_apart

    def _release(self, program_id: str) -> Coroutine[Any, Any, None]:
        return _to_its_end(self._releasing(program_id, self._post_open))

    async def _post_open(self, to: str, body: Mapping[str, Any]) -> None:
        if cast("Any", self).is_closed():
            await anyio.to_thread.run_sync(self._post_apart, to, body)
        else:
            await self._post(to, body)
