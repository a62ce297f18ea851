"""The templates of ``web/``, filled: pages that open anywhere, with one style sheet and one script inside."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from continuum_analysis.plots.on_screen import html_of


def fill_page(template: str, **values: Any) -> str:
    """One of our templates, with the style sheet and the script that every page has."""
    folder = files("continuum_analysis") / "report" / "web"
    found = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    made = jinja2.Environment(
        loader=jinja2.DictLoader(found),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals["drawn"] = lambda figure: Markup(html_of(figure.panels, figure.height))
    page: str = made.get_template(template).render(
        style=Markup(found["report.css"]), script=Markup(found["report.js"]), **values
    )
    return page
