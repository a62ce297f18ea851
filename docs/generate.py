"""Write the reference pages that come from the code. Run by ``make docs``; a test holds them to be current."""

from pathlib import Path

from continuum_analysis.metrics_page import page

(Path(__file__).parent / "metrics.md").write_text(page(), encoding="utf-8")
