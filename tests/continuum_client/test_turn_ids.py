"""Turn ids: one for each call, the same for every try of it. test_crossing: never the same for two calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from continuum_traces.run_dir import read_turns
from continuum_traces.wire import read_turn_id
from fake_server import FakeServer, Planned
from sdk import ask

from continuum_client import OpenAI, instrument, uninstrument
from continuum_client.dialects import DIALECTS


def ids_of(server: FakeServer) -> list[str]:
    """Of all tries, in order of arrival."""
    found = [seen.headers["x-turn-id"] for seen in server.asked]
    assert all(read_turn_id(turn_id) == turn_id for turn_id in found)
    return found


@pytest.mark.parametrize("instrumented", [False, True])
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.filterwarnings("ignore::continuum_client.ContinuumWarning")
def test_every_try_of_a_call_has_its_id_and_the_record_too(
    server: FakeServer, tmp_path: Path, dialect: Any, instrumented: bool, request: pytest.FixtureRequest
) -> None:
    """Of a call that fails in the end, too, and of one that is sent again without a refused field."""
    options: Any = {"dialect": dialect, "record": tmp_path}
    client = (openai.OpenAI if instrumented else OpenAI)(base_url=server.url, **({} if instrumented else options))
    if instrumented:
        request.addfinalizer(uninstrument)
    with (instrument(**options) if instrumented else client).program("p"):  # type: ignore[union-attr]
        server.plan.extend([Planned(500), Planned(hang_up=True)])
        ask(client)
        server.plan.append(Planned(401))
        with pytest.raises(openai.AuthenticationError):
            ask(client)
        ask(client)
    ids = ids_of(server)
    last = 3 + (dialect not in ("headers", "openai", "dynamo"))  # its fields are refused
    assert [ids.count(turn_id) for turn_id in dict.fromkeys(ids)] == [last, 1, 1], [seen.status for seen in server.seen]
    assert [record.turn_id for record in read_turns(tmp_path)] == list(dict.fromkeys(ids))
    assert all(
        seen.body.get("vllm_xargs", {"turn_id": id_})["turn_id"] == id_
        for seen, id_ in zip(server.asked, ids, strict=True)
    )
