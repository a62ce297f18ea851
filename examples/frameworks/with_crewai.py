"""CrewAI: a program around its calls (docs/client/frameworks.md)."""

from crewai import LLM, Agent, Crew, Task

from continuum_client import instrument

agents = instrument(dialect="vllm")
llm = LLM(model="openai/my-model", base_url="http://localhost:8000/v1", api_key="none")
worker = Agent(role="worker", goal="Look at the files", backstory="You know the shell.", llm=llm)
task = Task(description="What is here?", expected_output="Names of files", agent=worker)
with agents.program("crewai-1"):
    Crew(agents=[worker], tasks=[task], tracing=False).kickoff()
