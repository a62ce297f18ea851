"""Run in bfcl-eval's environment: a live web is recorded, and what was recorded answers alike. Prints what BFCL's tools
gave both times, and what was recorded."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.web_search import WebSearchAPI
from continuum_agents.bfcl_web import use_web
from serpapi.serp_api_client import SerpApiClient

PAGE = "<html><body><h1>Bridges</h1><p>It crosses the <b>Vessel</b>.</p><script>no()</script></body></html>"
HITS = [{"title": f"Hit {n}", "link": f"https://x.example/{n}", "snippet": f"About {n}."} for n in range(3)]


class Web(BaseHTTPRequestHandler):
    """SerpAPI, and a page."""

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if where.path == "/search":
            query = parse_qs(where.query)["q"][0]
            known = (
                {"organic_results": HITS, "search_metadata": {"id": "x"}} if query == "bridges" else {"error": "none"}
            )
            self.answer(200, json.dumps(known))
        else:
            self.answer(200 if where.path == "/page" else 404, PAGE)

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


def seen(base: str) -> list[object]:
    """What BFCL's tools give."""
    tools = WebSearchAPI()
    tools._load_scenario({"show_snippet": False})
    found: list[object] = [tools.search_engine_query("bridges", max_results=2)]
    tools._load_scenario({"show_snippet": True})
    found += [tools.search_engine_query(query) for query in ("bridges", "nothing")]
    found += [tools.fetch_url_content(f"{base}/page", mode=mode) for mode in ("raw", "markdown", "truncate")]
    return [*found, tools.fetch_url_content(f"{base}/gone"), tools.fetch_url_content("http://127.0.0.1:9/")]


def main(file: str) -> None:
    server = HTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    SerpApiClient.BACKEND = base
    use_web("live", record=file)
    live = seen(base)
    SerpApiClient.BACKEND = "http://127.0.0.1:9"
    live_unreachable = WebSearchAPI()
    live_unreachable._load_scenario({"show_snippet": True})
    live.append(live_unreachable.search_engine_query("unreachable"))
    server.shutdown()
    use_web(file)
    recorded = seen(base)
    recorded.append(live_unreachable.search_engine_query("unreachable"))
    sys.stdout.write(json.dumps({"live": live, "recorded": recorded}))


main(sys.argv[1])
