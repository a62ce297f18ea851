"""Eight samples of one task at the same time. Each is a program of its own.

OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python rollouts.py
"""

import asyncio

from continuum_client import AsyncOpenAI

SAMPLES, TURNS = 8, 3
client = AsyncOpenAI(dialect="vllm", record="runs/rollouts")


async def sample(number: int, task: str, model: str) -> str:
    messages = [{"role": "user", "content": f"Solve {task}."}]
    async with client.program(f"{task}/sample-{number}") as program:
        for _ in range(TURNS):
            reply = await client.chat.completions.create(model=model, messages=messages, temperature=1.0)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
            async with program.tool("run_tests"):
                await asyncio.sleep(0.05)  # the tests
            messages.append({"role": "user", "content": "2 of 3 tests pass."})
    return messages[-2]["content"]


async def main() -> None:
    model = (await client.models.list()).data[0].id
    answers = await asyncio.gather(*(sample(number, "task-7", model) for number in range(SAMPLES)))
    print(len(answers), "samples of", TURNS, "turns")


asyncio.run(main())
