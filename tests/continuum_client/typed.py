"""A type checker sees openai's own types through our classes, and our options. ``make check`` reads this file, and
nothing runs it. Each line with an ignored error must have that error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
from typing_extensions import assert_type

from continuum_client import AsyncOpenAI, OpenAI, Program, wrap

if TYPE_CHECKING:
    from openai import AsyncStream, Stream
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    client = OpenAI(base_url="http://x", api_key="k", timeout=3, max_retries=1, dialect="vllm", record="runs/a")
    assert_type(client.chat.completions.create(model="m", messages=[]), ChatCompletion)
    assert_type(client.chat.completions.create(model="m", messages=[], stream=True), Stream[ChatCompletionChunk])
    assert_type(client.bind(client.program("p")), OpenAI)
    assert_type(client.with_options(timeout=3, max_retries=0, dialect="vllm"), OpenAI)
    assert_type(client.copy(record=None, set_default_headers={}), OpenAI)
    wrapped = wrap(openai.AzureOpenAI(), dialect="vllm")
    assert_type(wrapped, OpenAI)
    assert_type(wrap(openai.OpenAI()), OpenAI)
    assert_type(wrap(openai.AsyncOpenAI()), AsyncOpenAI)
    assert_type(wrap(openai.AsyncAzureOpenAI()), AsyncOpenAI)
    with client.program("p", predict=lambda runs: None) as p, p.tool("x", expect_s=1) as tool:
        assert_type(tool.seconds, float | None)

    @p.bind
    def work(x: int) -> str:
        return str(x)

    assert_type(work(1), str)

    async def main() -> None:
        other = AsyncOpenAI(dialect="auto")
        assert_type(other.with_options(api_key="k", implicit=False), AsyncOpenAI)
        async with other.program() as q:
            assert_type(q, Program)
            assert_type(await other.chat.completions.create(model="m", messages=[]), ChatCompletion)
            stream = await other.chat.completions.create(model="m", messages=[], stream=True)
            assert_type(stream, AsyncStream[ChatCompletionChunk])

    OpenAI(dialekt="vllm")  # type: ignore[call-arg]
    OpenAI(dialect="vlm")  # type: ignore[arg-type]
    OpenAI(content="all")  # type: ignore[arg-type]
    client.with_options(dialekt="vllm")  # type: ignore[call-arg]
    client.copy(timeout="3")  # type: ignore[arg-type]
    wrap(openai.AzureOpenAI(), dilect="vllm")  # type: ignore[call-overload]
    wrap("client")  # type: ignore[call-overload]
    client.chat.completions.create(model=3, messages=[])  # type: ignore[call-overload]
