"""smolagents: a program around its calls (docs/client/frameworks.md)."""

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from continuum_client import current_program, instrument


@tool
def list_files() -> str:
    """Names of the files here."""
    with current_program().tool("list_files"):
        return "a.py b.py"


agents = instrument(dialect="vllm")
model = OpenAIServerModel("my-model", api_base="http://localhost:8000/v1", api_key="none")
with agents.program("smolagents-1"):
    ToolCallingAgent(tools=[list_files], model=model, max_steps=2).run("What is here?")
