"""A web server that streams answers; each answer is a program, released even if the user goes away.

uvicorn web_server:app --port 9000        # pip install fastapi uvicorn
"""

from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from continuum_client import AsyncOpenAI

app = FastAPI()
client = AsyncOpenAI(base_url="http://localhost:8000/v1", api_key="none", dialect="vllm")


@client.program
async def answer(question: str) -> AsyncIterator[str]:
    stream = await client.chat.completions.create(
        model="my-model", messages=[{"role": "user", "content": question}], stream=True
    )
    async for chunk in stream:
        yield chunk.choices[0].delta.content or ""


@app.get("/ask")
async def ask(question: str) -> StreamingResponse:
    return StreamingResponse(answer(question))
