"""AutoGen: a program around its calls (docs/client/frameworks.md)."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

from continuum_client import instrument

agents = instrument(dialect="vllm")
info = dict.fromkeys(("vision", "function_calling", "json_output", "structured_output"), False)
there = {"base_url": "http://localhost:8000/v1", "api_key": "none", "model_info": {**info, "family": "unknown"}}
agent = AssistantAgent("worker", OpenAIChatCompletionClient(model="my-model", **there))
with agents.program("autogen-1"):
    asyncio.run(agent.run(task="What is here?"))
