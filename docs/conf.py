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
extensions = ["myst_parser", "sphinx_copybutton", "rendering"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "results/*/**", "**/*.py"]
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 4
html_math_renderer = "mathml"
# Links to files outside docs/: tests/docs checks that every link leads somewhere.
suppress_warnings = ["myst.xref_missing"]


def colours(brand: str) -> dict[str, str]:
    names = ("brand-primary", "brand-content", "brand-visited", "api-name", "api-pre-name")
    return {f"color-{name}": brand for name in names}


html_theme = "furo"
html_title = "Turnwise"
html_show_sphinx = html_show_copyright = False
html_copy_source = html_show_search_summary = False  # opened as a file, a page cannot read others
html_static_path = ["static"]
html_css_files = ["turnwise.css"]
html_favicon = None
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": colours("#0b6e4f"),
    "dark_css_variables": colours("#7bd3a9"),
}
toc_object_entries = False  # the page's own table of contents lists sections, not each key
maximum_signature_line_length = 70
python_display_short_literal_types = True
smartquotes = False  # quotes in texts are often TOML
