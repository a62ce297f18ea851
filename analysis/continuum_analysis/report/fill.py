"""HTML pages from the templates in ``web/``. A page is one file that contains its style sheet and its script."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from continuum_analysis.plots.drawing import STYLE, draw


def fill_page(template: str, **values: Any) -> str:
    """Render a template with the style sheet and the script that every page contains."""
    folder = files("continuum_analysis") / "report" / "web"
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {"draw": draw, "svg": lambda drawing: Markup(drawing.on_page())}
    return environment.get_template(template).render(
        style=Markup(STYLE + sources["report.css"]), script=Markup(sources["report.js"]), **values
    )
