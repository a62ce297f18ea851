"""LlamaIndex: a program around its calls (docs/client/frameworks.md)."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

from continuum_client import instrument, tool


@tool
def list_files() -> str:
    """Names of the files here."""
    return "a.py b.py"


async def main() -> None:
    agents = instrument(dialect="vllm")
    there = {"api_base": "http://localhost:8000/v1", "api_key": "none", "is_function_calling_model": True}
    agent = FunctionAgent(llm=OpenAILike(model="my-model", is_chat_model=True, **there), tools=[list_files])
    async with agents.program("llama-index-1"):
        await agent.run("What is here?")


asyncio.run(main())
