"""A type checker sees openai's own types through our classes, and our options."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("mypy")

SNIPPET = """
from continuum_client import AsyncOpenAI, OpenAI, wrap
import openai

client = OpenAI(base_url="http://x", api_key="k", timeout=3, max_retries=1, dialect="vllm", record="runs/a")
reveal_type(client)  # OpenAI
reveal_type(client.chat.completions.create(model="m", messages=[]))  # ChatCompletion
reveal_type(client.chat.completions.create(model="m", messages=[], stream=True))  # Stream[ChatCompletionChunk]
reveal_type(client.bind(client.program("p")))  # OpenAI
wrapped = wrap(openai.AzureOpenAI(), dialect="vllm")
reveal_type(wrapped)  # OpenAI
wrapped.program("p")
reveal_type(wrap(wrapped, content="digest"))  # OpenAI
reveal_type(wrap(openai.OpenAI()))  # OpenAI
reveal_type(wrap(openai.AsyncOpenAI()))  # AsyncOpenAI
reveal_type(wrap(openai.AsyncAzureOpenAI()))  # AsyncOpenAI
with client.program("p", predict=lambda runs: None) as p:
    with p.tool("x", expect_s=1) as tool:
        reveal_type(tool.seconds)  # float | None


@p.bind
def work(x: int) -> str:
    return str(x)


reveal_type(work(1))  # str


async def main() -> None:
    other = AsyncOpenAI(dialect="auto")
    async with other.program() as q:
        reveal_type(q)  # Program
        reveal_type(await other.chat.completions.create(model="m", messages=[]))  # ChatCompletion
        stream = await other.chat.completions.create(model="m", messages=[], stream=True)
        reveal_type(stream)  # AsyncStream[ChatCompletionChunk]


OpenAI(dialekt="vllm")  # E: Unexpected keyword
OpenAI(dialect="vlm")  # E: arg-type
OpenAI(content="all")  # E: arg-type
wrap(openai.AzureOpenAI(), dilect="vllm")  # E: no overload
wrap("client")  # E: no overload
client.chat.completions.create(model=3, messages=[])  # E: no overload
"""
"""The types that are seen stand behind the lines, as ``# E:`` does where there is an error."""


def test_types(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--hide-error-context", "snippet.py"]
    environment = {"MYPYPATH": f"{root}:{root / 'traces'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    short = [re.sub(r"[\w.]+\.(\w+)", r"\1", kind).replace("builtins.", "") for kind in revealed]
    seen = [kind.replace("Union[float, None]", "float | None") for kind in short]
    assert seen == re.findall(r"reveal_type\(.*\)  # (.+)", SNIPPET), done.stdout[:3000]
    wrong = [number for number, line in enumerate(SNIPPET.splitlines(), 1) if "# E:" in line]
    found = sorted({int(line) for line in re.findall(r"snippet\.py:(\d+): error", done.stdout)})
    assert found == wrong, done.stdout[:3000]
