"""A small stand-in for the Hugging Face hub: the part of its HTTP interface that pushing a folder and downloading a repository call."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_standin0123456789"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What it holds, as a visitor finds it. A repository of data has the prefix `datasets/`."""

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    seen: list[bytes] = field(default_factory=list)

    def environment(self, home: Any, token: str | None = TOKEN) -> dict[str, str]:
        """The variables that make a process use this hub and no other."""
        own = {"HF_ENDPOINT": self.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        return own | ({"HF_TOKEN": token} if token else {"HF_TOKEN": "", "HF_TOKEN_PATH": str(home / "none")})


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a free port."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: Any) -> None: ...

        def answer(self, content: Any = b"", status: int = 200, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                content = b"".join(parts)
            else:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.seen.append(content)
            return content

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/")
            if "/resolve/" in path:
                name, _, rest = path.partition("/resolve/")
                content = hub.repositories.get(name, {}).get(rest.partition("/")[2])
                if content is None:
                    return self.answer(status=404, X_Error_Code="EntryNotFound" if name in hub.repositories else "RepoNotFound")
                return self.answer(content, X_Repo_Commit=COMMIT, ETag=f'"{hashlib.sha256(content).hexdigest()}"')
            if path.count("/") > 2 or path.startswith("api/models"):
                kind, owner, name, *rest = path.removeprefix("api/").split("/")
                files = hub.repositories.get("/".join(([kind] if kind == "datasets" else []) + [owner, name]))
                if files is None:
                    return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
                if "tree" in rest:
                    return self.answer([{"type": "file", "path": file, "size": len(files[file]), "oid": "0" * 40} for file in files])
                return self.answer({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]})
            return self.answer()

        def do_PUT(self) -> None:
            hub.large[self.path.rpartition("/")[2]] = self.body()
            self.answer()

        def do_POST(self) -> None:
            content = self.body()
            if self.path == "/api/validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer({"error": "Invalid username or password."}, 401)
            if self.path.endswith("/objects/batch"):
                objects = [
                    {**each, "actions": {"upload": {"href": f"{hub.address}/large/{each['oid']}"}}}
                    for each in json.loads(content)["objects"]
                ]
                return self.answer({"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")
            if self.path == "/api/repos/create":
                asked = json.loads(content)
                name = f"{asked['organization']}/{asked['name']}"
                hub.repositories.setdefault(name, {})
                hub.private.setdefault(name, asked.get("private", asked.get("visibility") == "private"))
                return self.answer({"url": f"{hub.address}/{name}", "name": name, "id": name})
            name = "/".join(self.path.split("/")[3:5])
            if "/preupload/" in self.path:
                files = json.loads(content)["files"]
                modes = [{"path": file["path"], "uploadMode": self.mode(file), "shouldIgnore": False, "oid": None} for file in files]
                return self.answer({"files": modes})
            for line in content.splitlines():  # a commit
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    hub.repositories[name][value["path"]] = hub.large[value["oid"]]
            return self.answer({"commitUrl": f"{hub.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

        @staticmethod
        def mode(file: dict[str, Any]) -> str:
            return "lfs" if file["path"].endswith(".safetensors") else "regular"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
