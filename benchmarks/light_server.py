"""A server that takes as little processor time as possible, to measure load generators: it streams filler tokens.

    python benchmarks/light_server.py --port 8100 --ttft-ms 200 --tpot-ms 40 [--cpu 1]

It answers OpenAI's completions and chat completions with a stream of one token a chunk. It has no model and no queue
and checks nothing. If both times are 0, the whole answer is one write. It notes when each request had arrived
completely: GET /arrivals returns these times (seconds on this process's clock) and the processor seconds that the
server used; DELETE /arrivals clears them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import ClassVar, cast

clock = time.perf_counter  # noqa: TID251
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = {
    True: b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"light","choices":[{"index":0,'
    b'"delta":{"content":"fine "},"finish_reason":null}]}\n\n',
    False: b'data: {"id":"c","object":"text_completion","created":1,"model":"light","choices":[{"index":0,'
    b'"text":"fine ","token_ids":[1234],"finish_reason":null}]}\n\n',
}


def frame(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


FRAMES = {chat: frame(event) for chat, event in EVENTS.items()}


def ending(chat: bool, tokens: int) -> bytes:
    choice = {"index": 0, "delta" if chat else "text": {} if chat else "", "finish_reason": "length"}
    usage = {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}
    same = {"id": "c", "object": "chat.completion.chunk" if chat else "text_completion", "created": 1, "model": "light"}
    last, counts = {**same, "choices": [choice]}, {**same, "choices": [], "usage": usage}
    return frame(b"".join(b"data: %b\n\n" % part for part in (_json(last), _json(counts), b"[DONE]"))) + b"0\r\n\r\n"


def _json(data: object) -> bytes:
    return json.dumps(data).encode()


class Light(asyncio.Protocol):
    """One connection of a client."""

    ttft_s = 0.0
    tpot_s = 0.0
    arrivals: ClassVar[list[float]] = []
    endings: ClassVar[dict[tuple[bool, int], bytes]] = {}

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
            self.arrivals.append(clock())
            self.stream(b"/chat/completions " in head[:64], tokens_of(request))
        elif head.startswith(b"DELETE"):
            self.arrivals.clear()
            self.whole({})
        elif b" /arrivals" in head[:64]:
            self.whole({"arrivals_s": self.arrivals, "cpu_s": time.process_time()})
        elif b" /v1/models" in head[:64]:
            self.whole({"object": "list", "data": [{"id": "light", "object": "model", "max_model_len": 131072}]})
        else:
            self.whole({"version": "0"})

    def whole(self, data: object) -> None:
        body = _json(data)
        start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(start + body)

    def stream(self, chat: bool, tokens: int) -> None:
        last = self.endings.get((chat, tokens))
        if last is None:
            last = self.endings[chat, tokens] = ending(chat, tokens)
        if self.ttft_s == self.tpot_s == 0:
            self.transport.write(HEAD + FRAMES[chat] * tokens + last)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self.ttft_s, self.emit, HEAD + FRAMES[chat], chat, tokens - 1, last, loop.time() + self.ttft_s)

    def emit(self, data: bytes, chat: bool, left: int, last: bytes, now_s: float) -> None:
        if left == 0:
            self.transport.write(data + last)
            return
        self.transport.write(data)
        loop, next_s = asyncio.get_running_loop(), now_s + self.tpot_s
        loop.call_at(next_s, self.emit, FRAMES[chat], chat, left - 1, last, next_s)


def tokens_of(request: bytes) -> int:
    for name in (b'"max_tokens":', b'"max_completion_tokens":'):
        start = request.rfind(name)
        if start >= 0:
            return int(request[start + len(name) : start + len(name) + 12].split(b",")[0].split(b"}")[0])
    return 16


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Light, "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--tpot-ms", type=float, default=0.0)
    parser.add_argument("--cpu", type=int)
    options = parser.parse_args()
    if options.cpu is not None:
        os.sched_setaffinity(0, {options.cpu})
    Light.ttft_s, Light.tpot_s = options.ttft_ms / 1e3, options.tpot_ms / 1e3
    try:
        import uvloop  # noqa: PLC0415 - faster where it is there

        uvloop.run(serve(options.port))
    except ImportError:
        asyncio.run(serve(options.port))


if __name__ == "__main__":
    main()
