"""The pages over HTTP and as a file: who may ask, what may be asked, and that nothing is loaded from elsewhere or runs that should not."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from page_browser import serving
from page_runs import ATTACK, make_run
from typer.testing import CliRunner

import turnwise as tw
from turnwise.cli.app import app
from turnwise.pages.report import collect, digest, html, key, write_report
from turnwise.pages.server import SCRIPTS, Server, open_server, static


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    make_run(tmp_path / "runs")
    (tmp_path / "secret.txt").write_text("secret")
    with serving(tmp_path / "runs") as served:
        assert served.server_address[0] == "127.0.0.1", "it listens on the loopback address alone"
        yield served


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host=True)
    for name, value in ({"Host": f"127.0.0.1:{server.server_address[1]}"} | headers).items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_page_its_scripts_and_the_answers_are_served(server: Server) -> None:
    status, _, body = ask(server, "/")
    assert status == 200
    for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', body.decode()):
        assert ask(server, name)[0] == 200
    status, headers, body = ask(server, "/api/runs")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["runs"][0]["run"] == "good"


def test_only_this_machine_may_be_named_by_any_port_of_a_tunnel(server: Server) -> None:
    for host in ("evil.example", "localhost.evil.example:7878", "127.0.0.1.evil.example", "localhost:1@evil.example", ""):
        assert {ask(server, path, Host=host)[0] for path in ("/", "/api/runs", "/static/pages.js")} == {403}
    for host in ("localhost:8000", "127.0.0.1", "127.0.0.1:9999"):
        assert ask(server, "/api/runs", Host=host)[0] == 200


def test_a_request_that_another_site_caused_is_refused(server: Server) -> None:
    for site, refused in (("cross-site", True), ("same-site", True), ("same-origin", False), ("none", False)):
        for path in ("/api/runs", "/static/pages.js", "/picture"):
            assert (ask(server, path, Sec_Fetch_Site=site)[0] == 403) == refused
        assert ask(server, "/", Sec_Fetch_Site=site)[0] == 200, "a link to the page may stand anywhere"


def test_nothing_can_be_written(server: Server) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert ask(server, "/api/runs", method)[0] == 501


def test_no_path_leads_out_of_the_runs(server: Server) -> None:
    for path in (
        "/../secret.txt",
        "/static/../secret.txt",
        "/static/..%2f..%2fsecret.txt",
        "/static/page.html",
        "/static/%2e%2e/server.py",
        "/secret.txt",
        "/api/../secret.txt",
        "/api/run?run=..%2F",
        "/api/run?run=%2Fetc",
        "/api/batch?run=good&part=..&iteration=3",
        "/picture?run=good&iteration=3&name=..%2Fsecret",
        "//etc/passwd",
        "/api/run?run=good%00",
    ):
        status, _, body = ask(server, path)
        assert status == 404 and b"secret\n" not in body and body != b"secret", path


def test_pages_may_load_nothing_from_elsewhere(server: Server) -> None:
    for path in ("/", "/api/runs", "/static/pages.js", "/absent"):
        _, headers, _ = ask(server, path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert "<script>" not in ask(server, "/")[2].decode()


def test_head_sends_no_body(server: Server) -> None:
    status, headers, body = ask(server, "/api/runs", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 0


def head_of(server: Server, path: str = "/api/runs") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_address[1]}\r\nConnection: close\r\n\r\n".encode()


def read_all(caller: socket.socket) -> bytes:
    parts = []
    while part := caller.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_callers_that_say_nothing_or_only_half_hold_nobody_up(server: Server) -> None:
    silent = [socket.create_connection(server.server_address, timeout=20) for _ in range(100)]
    for caller in silent[50:]:
        caller.sendall(b"GET /api/runs HTTP/1.1\r\nHost: 127")
    assert ask(server, "/api/runs")[0] == 200
    silent[-1].sendall(head_of(server).partition(b"Host: 127")[2])
    assert read_all(silent[-1]).startswith(b"HTTP/1.1 200 "), "a slow caller is answered too"
    for caller in silent:
        caller.close()


def test_what_is_no_request_gets_one_answer_and_the_connection_ends(server: Server) -> None:
    for sent, status in (
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/3\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nGET /", b"200"),
    ):
        with socket.create_connection(server.server_address, timeout=20) as caller:
            caller.sendall(sent)
            answer = read_all(caller)
        assert answer.startswith(b"HTTP/1.1 " + status) and answer.count(b"HTTP/1.1") == 1


def test_a_request_that_is_too_long_ends_its_connection_alone(server: Server) -> None:
    with socket.create_connection(server.server_address, timeout=20) as caller, suppress(ConnectionError):
        caller.sendall(b"GET /api/run?run=" + b"x" * 100_000)
        assert read_all(caller)[:13] in (b"", b"HTTP/1.1 414 ")
    assert ask(server, "/api/runs")[0] == 200


def test_a_failure_is_told_and_the_server_goes_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(words: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(server.answers, "run", fail)
    status, _, body = ask(server, "/api/run?run=good")
    assert status == 500 and "broken" in json.loads(body)["error"]
    assert ask(server, "/api/runs")[0] == 200


def test_scripts_never_write_markup() -> None:
    markup = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        'setAttribute("style',
        "javascript:",
    )
    for name in SCRIPTS:
        for forbidden in markup:
            assert forbidden not in static(name), f"{name} uses {forbidden}"


class Elements(HTMLParser):
    """The elements of a page and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def test_a_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    written, _ = write_report(run.folder, tmp_path / "report.html")
    page = Elements(written.read_text())
    loads = [value for tag, attrs in page.found for name, value in attrs.items() if name in ("src", "href", "srcset", "action", "data")]
    assert [value for value in loads if value and not value.startswith(("#", "data:"))] == []
    assert not re.search(r"url\(|@import", static("style.css"))
    assert [tag for tag, _ in page.found if tag in ("iframe", "object", "embed", "base", "form")] == []


def test_what_stands_in_a_report_cannot_end_its_element(tmp_path: Path) -> None:
    run = make_run(tmp_path, "good", option=ATTACK)
    text = html(collect({"good": run.folder}), f"good {ATTACK}")
    page = Elements(text)
    assert len(page.scripts) == 2, "data, and the one script"
    data = json.loads(page.scripts[0])
    assert (
        ATTACK
        in data["answers"][key("attempt", {"run": "good", "part": "rollouts", "iteration": 3, "id": "10"})]["turns"][0]["observation"]
    )
    policy = next(attrs["content"] or "" for tag, attrs in page.found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert f"script-src '{digest(page.scripts[1])}'" in policy and "unsafe" not in policy
    assert "window.harmed" not in page.scripts[1]
    assert not re.search(r"[<\u2028\u2029]", page.scripts[0])


def test_a_report_holds_whole_groups_up_to_its_cap(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    told = collect({"good": run.folder}, attempts=7)
    inside = [place for place in told.found if place.startswith("attempt?") and "rollouts" in place]
    assert len(inside) == 3 and told.attempts == 5 and told.kept == 8
    assert not [place for place in collect({"good": run.folder}, attempts=0).found if place.startswith("attempt?")]


def test_two_runs_of_one_name_stand_side_by_side(tmp_path: Path) -> None:
    one, two = make_run(tmp_path / "a", "same"), make_run(tmp_path / "b", "same", algorithm="grpo")
    _, told = write_report(one.folder, tmp_path / "report.html", [two.folder])
    assert [(card["run"], card["algorithm"]) for card in told.found["runs?"]["runs"]] == [("same", "gigpo"), ("b/same", "grpo")]
    with pytest.raises(tw.TurnwiseError, match="the same"):
        write_report(one.folder, tmp_path / "again.html", [one.folder])


def test_the_command_says_what_the_file_holds(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    result = CliRunner().invoke(app, ["report", str(run.folder), "--attempts", "3"])
    assert result.exit_code == 0, result.output
    assert (run.folder / "report.html").exists()
    assert "attempts of 8 (--attempts N embeds more)" in " ".join(result.output.split())


def test_a_report_of_a_folder_of_runs_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(tw.TurnwiseError, match="holds runs and is not a run itself"):
        write_report(tmp_path, tmp_path / "report.html")


def test_a_taken_port_is_an_error_that_says_what_to_do(server: Server, tmp_path: Path) -> None:
    with pytest.raises(tw.TurnwiseError, match="--port"):
        open_server(server.answers.listed, server.server_address[1])
