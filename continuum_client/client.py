"""Drop-in clients: ``openai.OpenAI`` and ``openai.AsyncOpenAI`` that tell the server to which program a call belongs.

The only overridden method that sends requests is ``request()``. openai's resources call it once for each call, and
openai's retries happen inside it, so that a retry has the same tags. Resources, types and streams are openai's own.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import openai

from continuum_client.call import Call, call_for
from continuum_client.decorators import F, around
from continuum_client.dialects import HEADERS, Dialect
from continuum_client.endpoints import endpoints, root_of
from continuum_client.errors import InvalidTag, log_release, once
from continuum_client.hook import hook
from continuum_client.program import Program
from continuum_client.settings import OPTIONS, ClientSettings, Options, settings_from, settings_like
from continuum_client.tagging import check_id

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Coroutine

    from typing_extensions import Self, Unpack

    from continuum_client.dialects import DialectName
    from continuum_client.predictors import Predictor
    from continuum_client.recorder import Recorder
    from continuum_client.reply import Content

ASK_TIMEOUT_S = 2.0
"""Time limit of the two requests that the client itself makes: ``GET /models`` for ``auto``, and the release."""
_ASK_OPTIONS: Mapping[str, Any] = {"timeout": ASK_TIMEOUT_S, "max_retries": 0}

SETTINGS = "_continuum_settings"
"""The constructor argument by which ``copy()`` passes a client's settings to the copy."""

_Class = TypeVar("_Class", bound=type[Any])
_OURS: Options = {"dialect": None, "record": None, "content": "none", "predict": False, "implicit": True}
_OUR_PARAMETERS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Options.__annotations__[name])
    for name, default in _OURS.items()
]


class _Tagging:
    """The methods that both clients share. The class precedes openai's class in the order of bases."""

    _continuum: ClientSettings
    _bound: Program | None = None
    base_url: Any

    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            ours = {name: options.pop(name) for name in OPTIONS if name in options}
            self._continuum = options.pop(SETTINGS, None) or settings_from(ours)
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
    def program(
        self,
        program_id: str | None = None,
        *,
        predict: bool | Predictor | None = None,
        parent: Program | str | None = None,
        output_tokens: int | None = None,
    ) -> Program: ...

    def program(
        self,
        program_id: Any = None,
        *,
        predict: bool | Predictor | None = None,
        parent: Program | str | None = None,
        output_tokens: int | None = None,
    ) -> Any:
        """Open a program: one run of an agent. Calls in the body of ``with client.program(...)`` are its turns.

        As the decorator ``@client.program`` it makes each call of a function a program of its own, with a random id.

        Args:
            program_id: 1 to 256 printable ASCII characters. Default: a random id.
            predict: send a prediction of the next tool with each call: True, False, or a ``Predictor``. Default: the
                client's setting.
            parent: the program that starts this program, or its id. Default: the current program, if there is one.
            output_tokens: expected length of each answer, in tokens; sent by the dialect ``dynamo``.

        Raises:
            InvalidTag: an id or a number cannot be sent.
        """
        if callable(program_id):
            return around(program_id, self.program)
        program = self._continuum.program(program_id, predict, parent, output_tokens)
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
            program = self.program(check_id(facts["program_id"]), parent=facts["parent_id"])
            if facts["task"] is not None:
                program.task(facts["task"])
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidTag(f"resume: expected the text from program.handoff(): {error!r}") from error
        return program

    def bind(self, program: Program) -> Self:
        """Return a copy of this client whose calls all belong to ``program``, in any thread or task."""
        twin = cast("Any", self).copy()
        twin._bound = program
        return cast("Self", twin)

    def _call(self, options: Any) -> Call | None:
        return call_for(self._continuum, self._bound, options, str(self.base_url))

    def _release_request(self, program_id: str) -> tuple[str, dict[str, Any]] | None:
        """Return the URL and the options of the POST that releases a program; None if the server has no release."""
        url = str(self.base_url)
        dialect = self._continuum.dialect or endpoints.dialect_of(url)
        release = dialect.release(program_id) if dialect is not None and endpoints.accepts(url, "extension") else None
        if release is None:
            return None
        root = str(getattr(self, "_azure_endpoint", None) or root_of(url)).rstrip("/")
        return root + release.path, {"cast_to": object, "body": release.body, "options": _ASK_OPTIONS}

    def _not_released(self, error: Exception) -> None:
        if getattr(error, "status_code", None) not in (404, 405):  # a server without the request has no pins either
            url = str(self.base_url)
            once.warn(f"release {url}", f"{url}: the release of a program failed: {error!r}")


def _without_models(url: str, error: BaseException) -> Dialect:
    """Return the dialect that ``auto`` means if ``GET /models`` has failed.

    Raises:
        BaseException: ``error``, if the server did not cause it.
    """
    if isinstance(error, openai.APIStatusError | openai.APITimeoutError):
        return endpoints.end_probe(url, None)  # the server has no model list, or is too slow
    endpoints.abandon_probe(url)
    if isinstance(error, openai.APIConnectionError):
        return HEADERS  # the call itself will report that no server answers
    raise error


class _SyncTagging(_Tagging):
    if not TYPE_CHECKING:

        def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            return self._send(super().request, cast_to, options, stream, stream_cls)

    def _send(self, send: Callable[..., Any], cast_to: Any, options: Any, stream: bool, stream_cls: Any) -> Any:
        """Send a request with ``send``; with tags, if it is a turn of a program."""
        call = self._call(options)
        if call is None:
            return send(cast_to, options, stream=stream, stream_cls=stream_cls)
        while True:
            try:
                if not call.tagged:
                    call.apply_tags(call.dialect or self._ask(call.url), stream, self)
                result = send(cast_to, options, stream=stream, stream_cls=stream_cls)
            except BaseException as error:
                if not call.retry_untagged(error):
                    raise
            else:
                return call.answered(result)

    def _ask(self, url: str) -> Dialect:
        """Return the dialect that ``auto`` means for the server at ``url``, from its model list."""
        if not endpoints.begin_probe(url):
            return HEADERS
        try:
            models = cast("Any", self).get("/models", cast_to=object, options=_ASK_OPTIONS)
        except BaseException as error:  # noqa: BLE001 - raised again unless the server caused it
            return _without_models(url, error)
        return endpoints.end_probe(url, models)

    def _release(self, program_id: str) -> None:
        request = self._release_request(program_id)
        if request is not None:
            try:
                cast("Any", self).post(request[0], **request[1])
                log_release(program_id, request[0])
            except Exception as error:  # noqa: BLE001 - the program is closed in any case
                self._not_released(error)

    _release_blocking = _release


class _AsyncTagging(_Tagging):
    if not TYPE_CHECKING:

        async def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
            return await self._send(super().request, cast_to, options, stream, stream_cls)

    async def _send(self, send: Callable[..., Any], cast_to: Any, options: Any, stream: bool, stream_cls: Any) -> Any:
        """Send a request with ``send``; with tags, if it is a turn of a program."""
        call = self._call(options)
        if call is None:
            return await send(cast_to, options, stream=stream, stream_cls=stream_cls)
        while True:
            try:
                if not call.tagged:
                    call.apply_tags(call.dialect or await self._ask(call.url), stream, self)
                result = await send(cast_to, options, stream=stream, stream_cls=stream_cls)
            except BaseException as error:
                if not call.retry_untagged(error):
                    raise
            else:
                return call.answered(result)

    async def _ask(self, url: str) -> Dialect:
        """Return the dialect that ``auto`` means for the server at ``url``, from its model list."""
        if not endpoints.begin_probe(url):
            return HEADERS
        try:
            models = await cast("Any", self).get("/models", cast_to=object, options=_ASK_OPTIONS)
        except BaseException as error:  # noqa: BLE001 - raised again unless the server caused it
            return _without_models(url, error)
        return endpoints.end_probe(url, models)

    def _release(self, program_id: str) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that sends the release; None if the server has no release."""
        request = self._release_request(program_id)
        return None if request is None else self._send_release(program_id, *request)

    def _release_blocking(self, program_id: str) -> None:
        """Send the release without an event loop, by a synchronous client that is made for this request."""
        request = self._release_request(program_id)
        if request is None:
            return
        this = cast("Any", self)
        key = this.api_key or "none"
        own = {"api-key": key} if hasattr(self, "_azure_endpoint") else {}
        try:
            with openai.OpenAI(
                base_url=self.base_url,
                api_key=key,
                organization=this.organization,
                project=this.project,
                default_headers={**own, **this._custom_headers},
                default_query=this._custom_query,
            ) as plain:
                plain.post(request[0], **request[1])
                log_release(program_id, request[0])
        except Exception as error:  # noqa: BLE001 - the program is closed in any case
            self._not_released(error)

    async def _send_release(self, program_id: str, url: str, options: dict[str, Any]) -> None:
        try:
            await cast("Any", self).post(url, **options)
            log_release(program_id, url)
        except Exception as error:  # noqa: BLE001 - the program is closed in any case
            self._not_released(error)


def _shows_arguments(theirs: type[Any]) -> Callable[[_Class], _Class]:
    """Decorate a class: its constructor's signature has the arguments of openai's class ``theirs``, and our options."""

    def decorate(cls: _Class) -> _Class:
        def __init__(self: Any, **options: Any) -> None:
            super(cast("Any", cls), self).__init__(**options)

        parameters = list(inspect.signature(theirs.__init__).parameters.values())
        rest = [parameter for parameter in parameters if parameter.kind is inspect.Parameter.VAR_KEYWORD]
        listed = [parameter for parameter in parameters if parameter not in rest]
        __init__.__signature__ = inspect.Signature([*listed, *_OUR_PARAMETERS, *rest])  # type: ignore[attr-defined]
        cls.__init__ = __init__
        return cls

    return decorate


@_shows_arguments(openai.OpenAI)
class OpenAI(_SyncTagging, openai.OpenAI):
    """``openai.OpenAI`` with programs. The constructor takes openai's arguments and five optional arguments.

    Args:
        dialect: which body fields the server accepts: ``headers`` (no fields; works with every server), ``vllm``,
            ``sglang``, ``dynamo``, ``trtllm``, ``thunderagent``, ``openai``; ``auto`` asks the server; or your own
            ``Dialect`` object. Default: ``CONTINUUM_DIALECT`` in the environment, else ``headers``.
        record: the directory to record to, or a ``Recorder``. Default: ``CONTINUUM_RECORD`` in the environment, else
            nothing is recorded.
        content: how much text is recorded: ``none``, ``digest``, ``full`` (see ``Recorder``).
        predict: send a prediction of the next tool with each call: False, True, or a ``Predictor``.
            ``client.program(predict=...)`` overrides this setting.
        implicit: give each conversation outside ``client.program`` a program of its own.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            api_key: str | Callable[[], str] | None = None,
            admin_api_key: str | None = None,
            workload_identity: Any = None,
            organization: str | None = None,
            project: str | None = None,
            webhook_secret: str | None = None,
            provider: Any = None,
            base_url: Any = None,
            data_residency: Any = None,
            websocket_base_url: Any = None,
            timeout: float | openai.Timeout | openai.NotGiven | None = openai.NOT_GIVEN,
            max_retries: int = openai.DEFAULT_MAX_RETRIES,
            default_headers: Mapping[str, str] | None = None,
            default_query: Mapping[str, object] | None = None,
            http_client: openai.DefaultHttpxClient | None = None,
            _strict_response_validation: bool = False,
            _enforce_credentials: bool = True,
            dialect: DialectName | Dialect | None = None,
            record: str | os.PathLike[str] | Recorder | None = None,
            content: Content = "none",
            predict: bool | Predictor = False,
            implicit: bool = True,
        ) -> None: ...


@_shows_arguments(openai.AsyncOpenAI)
class AsyncOpenAI(_AsyncTagging, openai.AsyncOpenAI):
    """``openai.AsyncOpenAI`` with programs. The constructor takes the same five arguments as that of ``OpenAI``. Enter
    programs with ``async with``."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            api_key: str | Callable[[], Awaitable[str]] | None = None,
            admin_api_key: str | None = None,
            workload_identity: Any = None,
            organization: str | None = None,
            project: str | None = None,
            webhook_secret: str | None = None,
            provider: Any = None,
            base_url: Any = None,
            data_residency: Any = None,
            websocket_base_url: Any = None,
            timeout: float | openai.Timeout | openai.NotGiven | None = openai.NOT_GIVEN,
            max_retries: int = openai.DEFAULT_MAX_RETRIES,
            default_headers: Mapping[str, str] | None = None,
            default_query: Mapping[str, object] | None = None,
            http_client: openai.DefaultAsyncHttpxClient | None = None,
            _strict_response_validation: bool = False,
            _enforce_credentials: bool = True,
            dialect: DialectName | Dialect | None = None,
            record: str | os.PathLike[str] | Recorder | None = None,
            content: Content = "none",
            predict: bool | Predictor = False,
            implicit: bool = True,
        ) -> None: ...


@_shows_arguments(openai.AzureOpenAI)
class AzureOpenAI(OpenAI, openai.AzureOpenAI):
    """``openai.AzureOpenAI`` with programs; made by ``wrap``."""


@_shows_arguments(openai.AsyncAzureOpenAI)
class AsyncAzureOpenAI(AsyncOpenAI, openai.AsyncAzureOpenAI):
    """``openai.AsyncAzureOpenAI`` with programs; made by ``wrap``."""


_Ours = TypeVar("_Ours", OpenAI, AsyncOpenAI, AzureOpenAI, AsyncAzureOpenAI)


@overload
def wrap(client: _Ours, **options: Unpack[Options]) -> _Ours: ...


@overload
def wrap(client: openai.AzureOpenAI, **options: Unpack[Options]) -> AzureOpenAI: ...


@overload
def wrap(client: openai.AsyncAzureOpenAI, **options: Unpack[Options]) -> AsyncAzureOpenAI: ...


@overload
def wrap(client: openai.OpenAI, **options: Unpack[Options]) -> OpenAI: ...


@overload
def wrap(client: openai.AsyncOpenAI, **options: Unpack[Options]) -> AsyncOpenAI: ...


def wrap(
    client: Any,
    *,
    dialect: DialectName | Dialect | None = None,
    record: str | os.PathLike[str] | Recorder | None = None,
    content: Content | None = None,
    predict: bool | Predictor | None = None,
    implicit: bool | None = None,
) -> Any:
    """Make a client with programs from an openai client (``openai.OpenAI``, ``AzureOpenAI`` or any subclass).

    The given client is not changed, and both clients share one connection pool. The result is an instance of the given
    client's class and of our ``OpenAI`` or ``AsyncOpenAI``. If the given client is an instance of our classes already,
    the result keeps its options, except for those that are passed here.

    Args:
        client: an instance of ``openai.OpenAI`` or ``openai.AsyncOpenAI``.
        dialect, record, content, predict, implicit: as for ``OpenAI``.

    Raises:
        TypeError: ``client`` is not an openai client.
    """
    options = Options(dialect=dialect, record=record, content=content, predict=predict, implicit=implicit)
    cls = tagged(type(client))
    twin: Any = object.__new__(cls)
    twin.__dict__.update(client.__dict__)
    for name in _cached(cls):
        twin.__dict__.pop(name, None)  # the given client's resources hold a reference to it
    known = isinstance(client, _Tagging)
    twin._continuum = settings_like(client._continuum, options) if known else settings_from(options)
    return twin


_made: dict[type[Any], type[Any]] = {openai.AzureOpenAI: AzureOpenAI, openai.AsyncAzureOpenAI: AsyncAzureOpenAI}
_made_lock = threading.Lock()


def _cached(cls: type[Any]) -> list[str]:
    """Return the names of a class's cached properties."""
    attributes = (item for base in cls.__mro__ for item in vars(base).items())
    return [name for name, value in attributes if isinstance(value, functools.cached_property)]


def tagged(cls: type[Any]) -> type[Any]:
    """Return a subclass of ``cls`` with programs. It has the same name, because openai sends it as the user agent."""
    with _made_lock:
        if cls not in _made:
            _made[cls] = _make(cls)
        return _made[cls]


def _make(cls: type[Any]) -> type[Any]:
    if issubclass(cls, _Tagging):
        return cls
    for theirs, ours in ((openai.OpenAI, OpenAI), (openai.AsyncOpenAI, AsyncOpenAI)):
        if issubclass(cls, theirs):
            made = type(cls.__name__, (ours, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
            return _shows_arguments(cls)(made)
    raise TypeError(f"wrap() takes a client of openai's, not {cls.__name__}")
