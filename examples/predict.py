"""A function that predicts the next tool and how long it runs (docs/client/programs.md)."""

from continuum_client import OpenAI, Prediction


def next_tool(runs):
    edited = any(run.name == "edit" for run in runs)  # a run has a name and duration_s
    return Prediction("pytest", seconds=12.0, p90=40.0) if edited else None


client = OpenAI(base_url="http://localhost:8000/v1", api_key="none", dialect="vllm", predict=next_tool)
