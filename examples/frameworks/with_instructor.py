"""Instructor: a program around its calls (docs/client/frameworks.md)."""

import instructor
import openai
from pydantic import BaseModel

from continuum_client import instrument


class Answer(BaseModel):
    x: int


agents = instrument(dialect="vllm")
plain = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="none")
client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
with agents.program("instructor-1"):
    client.create(model="my-model", response_model=Answer, messages=[{"role": "user", "content": "Hello"}])
