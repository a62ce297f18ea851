"""docs/server/grafana.json asks for what /metrics has, and shows all of it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from continuum_server.policy.registry import POLICIES, make_policy
from continuum_server.vllm_plugin.metrics import Metrics, prometheus_text
from dashboard import HOLDING
from policy_driver import MACHINE

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "server" / "grafana.json").read_text())
SERVED = [name for name, policy in POLICIES.items() if policy.label != "bound"]


def families_of(policy: str) -> set[str]:
    """What /metrics has under this policy, after its first scrape."""
    made = make_policy(policy, {}, MACHINE)
    believed = made.state()
    gauges = {name: {"value": believed[name], "help": text} for name, text in made.gauges.items()}
    counted = defaultdict(int, Metrics().to_json())
    state: dict[str, Any] = defaultdict(int, {"pins": [], "gauges": gauges, "metrics": counted})
    return set(re.findall(r"^# TYPE (continuum:\w+)", prometheus_text([state]), flags=re.M))


def queried(panel: dict[str, Any]) -> set[str]:
    """Families that this panel asks for."""
    names = re.findall(r"continuum:\w+", " ".join(target["expr"] for target in panel.get("targets", ())))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


EXPORTED = {policy: families_of(policy) for policy in SERVED}


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    shown = set().union(*map(queried, DASHBOARD["panels"]))
    exported = set().union(*EXPORTED.values())
    assert shown == exported


def rows() -> list[tuple[str, set[str]]]:
    """Titles of the dashboard's rows, and what the panels of each ask for."""
    found: list[tuple[str, set[str]]] = []
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            found.append((panel["title"], set()))
        else:
            found[-1][1].update(queried(panel))
    return found


def test_a_row_says_which_policies_have_its_metrics() -> None:
    for title, names in rows():
        having = [policy for policy, families in EXPORTED.items() if names <= families]
        assert title in (("Every policy", HOLDING) if having == SERVED else (f"Only under {', '.join(having)}",))
        assert not any(names & families for policy, families in EXPORTED.items() if policy not in having)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
