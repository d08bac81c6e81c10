"""An MCP server that behaves badly when asked to: it speaks the protocol itself, so it starts in no time and can break any rule."""

import json
import os
import sys
import time

TOOLS = ("count", "hang", "die", "flood", "variables", "fail", "picture")
READS = "--reads" in sys.argv
calls = 0


def result(name: str, arguments: dict) -> dict:
    global calls
    calls += 1
    if name == "hang":
        time.sleep(600)
    if name == "die":
        os._exit(3)
    if name == "picture":
        return {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}
    if name == "fail":
        return {"content": [{"type": "text", "text": "no such row"}], "isError": True}
    text = {"count": str(calls), "variables": " ".join(sorted(os.environ))}.get(name) or "x" * int(arguments.get("characters", 50_000_000))
    return {"content": [{"type": "text", "text": text}]}


def answer(message: dict) -> dict | None:
    method, params = message.get("method"), message.get("params") or {}
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "rough", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"characters": {"type": "integer"}}}
        return {"tools": [{"name": name, "inputSchema": schema, "annotations": {"readOnlyHint": READS}} for name in TOOLS]}
    if method == "tools/call":
        return result(params["name"], params.get("arguments") or {})
    return {} if method == "ping" else None


if "--silent" in sys.argv:
    time.sleep(600)
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and (said := answer(message)) is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": said}), flush=True)
