"""What the site adds to Sphinx, so that it needs no network: formulas as MathML, and drawings as part of the page.

A drawing in docs/images/concepts goes into the HTML itself. Its text is then found and selected like other text, and its colours are those
of the theme, light or dark (static/turnwise.css). Elsewhere, as on GitHub, the file is an image with the same colours of its own.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

DRAWINGS = "images/concepts/"
OWN_STYLE = re.compile(r"\s*<style>.*?</style>", re.DOTALL)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline_formula, None), block_renderers=(block_formula, None))
    app.connect("doctree-resolved", inline_drawings)
    app.connect("doctree-resolved", without_links_to_folders)
    app.connect("html-page-context", reachable_tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline_formula(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def block_formula(translator: Any, node: nodes.Element) -> None:
    translator.body.append(f'<div class="formula">{_mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def _mathml(formula: str, display: str) -> str:
    from latex2mathml.converter import convert

    return str(convert(formula, display=display))


def inline_drawings(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the image of a drawing by the drawing."""
    for image in list(doctree.findall(nodes.image)):
        if app.builder.format == "html" and image["uri"].startswith(DRAWINGS):
            svg = OWN_STYLE.sub("", (Path(app.srcdir) / image["uri"]).read_text(encoding="utf-8"))
            label = escape(image.get("alt", ""), quote=True)
            svg = svg.replace("<svg ", f'<svg class="drawing" role="img" aria-label="{label}" ', 1)
            image.replace_self(nodes.raw("", svg, format="html"))


def without_links_to_folders(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """A folder of the repository is no page of the site: its name stays, without a link."""
    for link in list(doctree.findall(nodes.reference)):
        target = link.get("refuri") or "#" + link.get("refid", "")
        if target.startswith("#") and "/" in target:
            link.replace_self(list(link.children))


def reachable_tables(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Wide tables are named as what can be scrolled, so that a keyboard reaches them."""
    if body := context.get("body"):
        context["body"] = body.replace('<div class="table-wrapper ', '<div tabindex="0" class="table-wrapper ')
