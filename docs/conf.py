"""The documentation site: `make docs` builds it into docs/_build. Sphinx reads the Markdown pages as they are."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from generate import write_reference  # noqa: E402

from turnwise import __version__  # noqa: E402

write_reference(HERE / "reference")

project, author, copyright = "Turnwise", "The Turnwise authors", "The Turnwise authors"
version = release = __version__
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "results/*/**", "**/*.py"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing"]  # links to files outside docs/; tests/docs checks that every link leads somewhere
html_theme = "furo"
html_title = "Turnwise"
html_static_path = ["static"]
html_css_files = ["turnwise.css"]
html_favicon = None
copybutton_prompt_text = r"\$ "
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#7bd3a9", "color-brand-content": "#7bd3a9"},
}
