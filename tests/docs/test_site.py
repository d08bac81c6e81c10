"""The site builds without a warning, needs no network, and every page of it can be reached. Runs where the extra `docs` is installed:
`make docs-test`. One test, because building takes most of its time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import ROOT

NEEDED = ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "latex2mathml")
LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href"), ("object", "data")}
MADE = {"genindex.html", "search.html", "py-modindex.html"}  # pages that Sphinx adds; the theme links what is of use


class Page(HTMLParser):
    """What a page loads, where it links, the places in it, and the links of its navigation."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.navigation: set[str] = set()
        self._depth = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        targets = {value for name, value in given.items() if name in ("href", "src", "data")}
        loaded = {value for name, value in given.items() if (tag, name) in LOADING and given.get("rel") not in ("canonical", "search")}
        self.loads |= loaded
        self.links |= targets
        if tag == "div":
            self._depth += self._depth > 0 or "sidebar-tree" in given.get("class", "")
        if tag == "a" and self._depth:
            self.navigation.add(given.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._depth:
            self._depth -= 1


def external(target: str) -> bool:
    return re.match(r"(?i)(https?:)?//", target) is not None


def target_of(site: Path, page: Path, link: str) -> tuple[Path, str]:
    """The file and the place in it that a link names."""
    path, _, place = link.partition("#")
    return (page.parent / unquote(path.partition("?")[0])).resolve() if path else page, unquote(place)


def test_the_site_builds_offline_and_all_of_it_can_be_reached(tmp_path: Path) -> None:
    for name in NEEDED:
        pytest.importorskip(name, reason=f"{name} is not installed: the extra docs has it, and `make docs-test` installs that")
    site = tmp_path.resolve() / "site"
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(tmp_path / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, "docs", str(site)]
    modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    built = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": modules}, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr

    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    loaded = [f"{path.relative_to(site)} loads {one}" for path, page in pages.items() for one in page.loads if external(one)]
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)", sheet.read_text(encoding="utf-8"))
        loaded += [f"{sheet.relative_to(site)} loads {one}" for one in found]
    assert not loaded, "\n".join(loaded)

    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            if not link or re.match(r"[a-z][a-z0-9+.-]*:|//", link):
                continue
            file, place = target_of(site, path, link)
            if not file.exists():
                broken.append(f"{path.relative_to(site)} links {link}: there is no such file")
            elif place and file in pages and place not in pages[file].places:
                broken.append(f"{path.relative_to(site)} links {link}: there is no such place")
    assert not broken, "\n".join(broken)

    start = site / "index.html"
    reached = {target_of(site, start, link)[0] for link in pages[start].navigation} | {start}
    missing = [str(path.relative_to(site)) for path in pages if path not in reached and path.name not in MADE]
    assert not missing, f"the navigation does not reach {', '.join(missing)}"
