"""The routes that bring tags, read from the router of a whole vLLM server, against a list written by hand
(``vllm_routes.txt``).

A vLLM version that adds a POST route fails here until somebody has looked at what that route brings to the engine.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from continuum_server.vllm_plugin.form_tags import tag_form
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, Caller
from continuum_server.vllm_plugin.routes import Carrier, carriers, finder, guarded
from fastapi import FastAPI, Form
from pydantic import BaseModel
from starlette.testclient import TestClient

LINES = Path(__file__).with_name("vllm_routes.txt").read_text().splitlines()
ROUTES = {path: carrier for carrier, path in (line.split() for line in LINES if line and line[0] != "#")}


@pytest.fixture(scope="module")
def app() -> Any:
    """vLLM's application for a model that generates, with everything switched on."""
    from vllm.entrypoints.launchers.app import build_app  # noqa: PLC0415 - seconds
    from vllm.entrypoints.launchers.cli_args import make_arg_parser  # noqa: PLC0415
    from vllm.tasks import GENERATION_TASKS  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        for name in ("VLLM_SERVER_DEV_MODE", "VLLM_ENABLE_COHERE_API", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            patch.setenv(name, "1")
        args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--enable-scale-out", "--enable-fault-tolerance"])
        yield build_app(args, GENERATION_TASKS)


def test_each_route_of_vllm_is_known(app: Any) -> None:
    posts = {route.path for route in app.routes if "POST" in (getattr(route, "methods", None) or ())}
    carrying = {path: carrier.name for path, carrier in carriers(app).items()}
    assert carrying == {path: carrier for path, carrier in ROUTES.items() if carrier != "-"}
    assert posts - set(ROUTES) == set()


def test_a_request_s_path_finds_its_route(app: Any) -> None:
    find = finder(app)
    assert find("/v1/chat/completions/batch") is Carrier.XARGS
    assert find("/v1/completions/") is None  # the router redirects
    assert find("/v1/responses/r/cancel") is None
    assert guarded("/v1/completions")
    assert guarded("/inference/v1/generate")
    assert not guarded("/invocations")


class Body(BaseModel):
    max_tokens: int = 1


def test_a_route_without_room_for_tags_and_one_with_parameters() -> None:
    app = FastAPI()

    @app.post("/v1/{model}/run")
    async def run(model: str, body: Body) -> None: ...

    @app.post("/odd")
    async def odd(body: int) -> None: ...

    odd.__annotations__["body"] = "Nowhere"  # cannot be resolved any more
    find = finder(app)
    assert find("/v1/a/run") is Carrier.HEADERS  # no xargs, and no other field
    assert find("/odd") is Carrier.XARGS


# ------------------------------------------------------------------------------------------ forms


@pytest.fixture(scope="module")
def transcribe() -> TestClient:
    """vLLM's own form behind a route that answers what it read, after ``tag_form``."""
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest  # noqa: PLC0415

    app = FastAPI()

    async def read(request: Any) -> dict[str, Any]:
        return {"xargs": request.vllm_xargs, "file": (await request.file.read()).hex(), "prompt": request.prompt}

    read.__annotations__["request"] = Annotated[TranscriptionRequest, Form()]
    app.post("/read")(read)

    async def tagging(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            found = await tag_form(scope, receive, {}, Caller("c" * 16))
            assert found is not None
            body, content_type, _ = found
            scope = {**scope, "headers": [(b"content-type", content_type.encode())]}
            messages = [{"type": "http.request", "body": body}]
            await app(scope, lambda: asyncio.sleep(0, messages.pop()), send)

    return TestClient(tagging)


DEEP = '{"program_id": ' + "[" * 5000 + "]" * 5000 + "}"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (None, {}),
        ('{"program_id": "p", "kv_ttl_s": null, "other": 5}', {"program_id": "p", "other": 5}),
        ('{"continuum_client": "0123456789abcdef", "continuum_namespace": ["x"]}', {}),
        ("not json", {}),
        pytest.param(DEEP, {}, id="too deep"),
    ],
)
def test_a_form_s_tags_are_cleaned(transcribe: TestClient, sent: str | None, kept: dict[str, Any]) -> None:
    content = bytes(range(256)) * 3 + b"\r\n--"
    data = {"prompt": 'é "quoted"\r\n', **({"vllm_xargs": sent} if sent is not None else {})}
    answer = transcribe.post("/read", data=data, files={"file": ('a"\\.wav', content, "audio/wav")})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["xargs"] == {**kept, CLIENT_KEY: "c" * 16}
    assert bytes.fromhex(found["file"]) == content
    assert found["prompt"] == data["prompt"]


def test_a_part_s_name_cannot_smuggle_in_a_second_one(transcribe: TestClient) -> None:
    forged = json.dumps({CLIENT_KEY: "f" * 16})
    name = "utf-8''a%22%0D%0AContent-Disposition: form-data; name=vllm_xargs"
    parts = [
        f"Content-Disposition: form-data; name*={name}\r\n\r\n{forged}",
        f'Content-Disposition: form-data; name="vllm_xargs"; filename="x"\r\n\r\n{forged}',
        'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\nx',
    ]
    body = "".join(f"--b\r\n{part}\r\n" for part in parts) + "--b--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = transcribe.post("/read", content=body, headers=headers)
    assert answer.json()["xargs"] == {CLIENT_KEY: "c" * 16}


def test_what_is_no_form_is_left_alone() -> None:
    scope = {"type": "http", "headers": [(b"content-type", b"multipart/form-data; boundary=b")], "app": None}
    body = {"type": "http.request", "body": b"--x"}
    assert asyncio.run(tag_form(scope, lambda: asyncio.sleep(0, body), {}, None)) is None
