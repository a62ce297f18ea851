"""PydanticAI 2: a program around its calls (docs/client/frameworks.md)."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from continuum_client import instrument, tool

agents = instrument(dialect="vllm")
model = OpenAIChatModel("my-model", provider=OpenAIProvider(base_url="http://localhost:8000/v1", api_key="none"))
agent = Agent(model)


@agent.tool_plain
@tool
def list_files() -> str:
    """Names of the files here."""
    return "a.py b.py"


with agents.program("pydantic-1"):
    agent.run_sync("What is here?")
