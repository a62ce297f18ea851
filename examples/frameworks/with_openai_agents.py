"""OpenAI Agents SDK: a program around its calls (docs/client/frameworks.md)."""

from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from continuum_client import instrument, tool


@function_tool
@tool
def list_files() -> str:
    """Names of the files here."""
    return "a.py b.py"


set_tracing_disabled(True)  # it sends traces to OpenAI
agents = instrument(dialect="vllm")
model = OpenAIChatCompletionsModel("my-model", AsyncOpenAI(base_url="http://localhost:8000/v1", api_key="none"))
with agents.program("agents-1"):
    Runner.run_sync(Agent(name="worker", tools=[list_files], model=model), "What is here?")
