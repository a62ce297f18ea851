"""A server that takes as little processor time as possible, to measure the load generator: it streams filler tokens.

    python benchmarks/light_server.py --ttft-ms 200 --tpot-ms 40 [--cpu 1]

It listens on a free port, which it prints, and answers OpenAI's completions with a stream of one token a chunk. It has
no model and no queue and checks nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from functools import cache
from typing import cast

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"c","object":"text_completion","created":1,"model":"light","choices":[{"index":0,'
    b'"text":"fine ","token_ids":[1234],"finish_reason":null}]}\n\n'
)


def frame(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


FRAME = frame(EVENT)


@cache
def ending(tokens: int) -> bytes:
    usage = {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
    same = {"id": "c", "object": "text_completion", "created": 1, "model": "light"}
    last = {**same, "choices": [{"index": 0, "text": "", "finish_reason": "length"}]}
    parts = (_json(last), _json({**same, "choices": [], "usage": usage}), b"[DONE]")
    return frame(b"".join(b"data: %b\n\n" % part for part in parts)) + b"0\r\n\r\n"


def _json(data: object) -> bytes:
    return json.dumps(data).encode()


class Light(asyncio.Protocol):
    """One connection of a client."""

    ttft_s = 0.0
    tpot_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.received = bytearray()
        self.needed = 0

    def data_received(self, data: bytes) -> None:
        self.received += data
        while self.received:
            if not self.needed:
                end = self.received.find(b"\r\n\r\n")
                if end < 0:
                    return
                head = bytes(self.received[:end]).lower()
                start = head.find(b"content-length:")
                length = int(head[start + 15 :].split(b"\r", 1)[0]) if start >= 0 else 0
                self.needed, self.body_at = end + 4 + length, end + 4
            if len(self.received) < self.needed:
                return
            request = bytes(self.received[: self.needed])
            del self.received[: self.needed]
            self.needed = 0
            self.answer(request[: self.body_at], request)

    def answer(self, head: bytes, request: bytes) -> None:
        if head.startswith(b"POST"):
            loop = asyncio.get_running_loop()
            first_s = loop.time() + self.ttft_s
            loop.call_at(first_s, self.emit, HEAD + FRAME, tokens_of(request), 1, first_s)
        elif b" /v1/models" in head[:64]:
            self.whole({"object": "list", "data": [{"id": "light", "object": "model", "max_model_len": 131072}]})
        else:
            self.whole({"version": "0"})

    def whole(self, data: object) -> None:
        body = _json(data)
        start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(start + body)

    def emit(self, data: bytes, tokens: int, sent: int, now_s: float) -> None:
        if sent == tokens:
            self.transport.write(data + ending(tokens))
            return
        self.transport.write(data)
        next_s = now_s + self.tpot_s
        asyncio.get_running_loop().call_at(next_s, self.emit, FRAME, tokens, sent + 1, next_s)


def tokens_of(request: bytes) -> int:
    start = request.rindex(b'"max_tokens":') + len(b'"max_tokens":')
    return int(request[start : start + 12].split(b",")[0].split(b"}")[0])


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Light, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--tpot-ms", type=float, default=0.0)
    parser.add_argument("--cpu", type=int)
    options = parser.parse_args()
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    Light.ttft_s, Light.tpot_s = options.ttft_ms / 1e3, options.tpot_ms / 1e3
    uvloop.run(serve())


if __name__ == "__main__":
    main()
