"""An agent that lists and reads files. The two numbered lines are all that is specific to Continuum.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python agent.py
"""

import json
from pathlib import Path

from continuum_client import OpenAI  # 1. was: from openai import OpenAI

TOOLS = {
    "list_files": lambda: " ".join(sorted(path.name for path in Path().iterdir())),
    "read_file": lambda name: Path(name).read_text()[:2000],
}
TEXT = {"type": "string"}
DESCRIBED = [
    {"type": "function", "function": {"name": "list_files", "parameters": {"type": "object", "properties": {}}}},
    {
        "type": "function",
        "function": {"name": "read_file", "parameters": {"type": "object", "properties": {"name": TEXT}}},
    },
]

client = OpenAI(dialect="vllm", record="runs/agent")
model = client.models.list().data[0].id


def answer(question: str, task: str, turns: int = 20) -> str:
    messages = [{"role": "user", "content": question}]
    with client.program(task) as program:  # 2. the agent's turns belong together
        for _ in range(turns):
            reply = client.chat.completions.create(model=model, messages=messages, tools=DESCRIBED).choices[0].message
            messages.append(reply.model_dump(exclude_none=True))
            if not reply.tool_calls:
                return reply.content or ""
            for call in reply.tool_calls:
                with program.tool(call.function.name):  # optional: the client times it, not only the server
                    output = TOOLS[call.function.name](**json.loads(call.function.arguments or "{}"))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return "gave up"


print(answer("Which files are here?", task="files-1"))
