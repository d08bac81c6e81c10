"""How long `turnwise diagnose` takes for a log of 100,000 turns, and its peak memory.

    python tests/logs/speed.py FOLDER          (writes about 1 GB of logs into the folder, unless they are there)

10,000 attempts of 10 turns at 500 tasks; a turn is a call with arguments and a result of 300 characters, of which every tenth is an error.
The same attempts as lines of OpenAI's messages, as spans of OpenTelemetry (every span repeats the conversation before it), and as a run of
Turnwise. Each is diagnosed by a process of its own: what is measured is all that a user waits for.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import turnwise as tw
from turnwise.data.batch import Batch
from turnwise.runs.folder import CONFIG, SUMMARY, Run

TASKS, ATTEMPTS, TURNS, LONG = 500, 20, 10, 300
WORDS = [
    f"{a}{b}" for a in ("or", "pa", "cus", "in", "re", "de", "sto", "ship") for b in ("der", "ment", "tomer", "voice", "fund", "lay", "ck")
]


def attempts() -> Iterator[tuple[str, str, list[tuple[str, dict[str, Any], str]], bool]]:
    """The id, the task, the turns (tool, arguments, result) and the outcome of each attempt."""
    for task in range(TASKS):
        for number in range(ATTEMPTS):
            rng = random.Random(f"{task} {number}")
            turns, place, chance = [], 1, 0.7
            for _ in range(TURNS):
                tool = rng.choice(("find", "open", "edit", "send"))
                chance *= 0.3 if tool == "send" and place % 10 == 0 else 1.0  # what was sent after an error is wrong
                place = (place * 3 + len(tool) + rng.randrange(3)) % 40
                text = "Error: " if place % 10 == 0 else ""
                text += " ".join(random.Random(f"{task} {place}").choices(WORDS, k=LONG // 6))
                turns.append((tool, {"record": place}, text[:LONG]))
            yield f"{task}/{number}", f"task {task}", turns, rng.random() < chance


def conversation(task: str, turns: list[tuple[str, dict[str, Any], str]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You help in a shop."}, {"role": "user", "content": f"Do {task}."}]
    for number, (tool, arguments, result) in enumerate(turns):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return messages


def parts(task: str, turns: list[tuple[str, dict[str, Any], str]]) -> list[dict[str, Any]]:
    """The same in the form of the GenAI conventions."""
    messages: list[dict[str, Any]] = [{"role": "user", "parts": [{"type": "text", "content": f"Do {task}."}]}]
    for number, (tool, arguments, result) in enumerate(turns):
        call = {"type": "tool_call", "id": f"call_{number}", "name": tool, "arguments": arguments}
        messages.append({"role": "assistant", "parts": [call]})
        messages.append({"role": "tool", "parts": [{"type": "tool_call_response", "id": f"call_{number}", "response": result}]})
    return messages


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}}


def spans() -> Iterator[dict[str, Any]]:
    """One message of OTLP for each attempt: a span for the agent, and one for each call of the model."""
    for number, (_, task, turns, won) in enumerate(attempts()):
        told, trace = parts(task, turns), f"{number + 1:032x}"
        common = {"traceId": trace, "kind": 3}
        attributes = [attribute("task.id", task), attribute("reward", float(won))]
        rows = [{**common, "spanId": f"{1:016x}", "name": "agent", "startTimeUnixNano": "1", "attributes": attributes}]
        for turn in range(TURNS):
            attributes = [
                attribute("gen_ai.operation.name", "chat"),
                attribute("gen_ai.input.messages", json.dumps(told[: 1 + 2 * turn])),
                attribute("gen_ai.output.messages", json.dumps(told[1 + 2 * turn : 2 + 2 * turn])),
            ]
            own = {"spanId": f"{turn + 2:016x}", "parentSpanId": f"{1:016x}", "name": "chat m", "startTimeUnixNano": f"{turn + 2}"}
            rows.append({**common, **own, "attributes": attributes})
        yield {"resourceSpans": [{"scopeSpans": [{"spans": rows}]}]}


def write_run(folder: Path) -> None:
    folder.mkdir()
    (folder / CONFIG).write_text('name = "speed"\n\n[env]\nname = "logs"\n', encoding="utf-8")
    trajectories = []
    for name, task, turns, won in attempts():
        seen = [f"Do {task}.", *(result for _, _, result in turns)]
        actions = [f"{tool} {json.dumps(arguments)}" for tool, arguments, _ in turns]
        rows = [tw.Turn(before, observation=before, action=action, response=action) for before, action in zip(seen, actions, strict=False)]
        rows[-1].reward = float(won)
        trajectories.append(tw.Trajectory(task, name, task=task, turns=rows, success=won))
    run = Run(folder)
    run.write_facts(SUMMARY, {"finished": True})
    run.save_batch(0, Batch.of(trajectories), keep=None, tokens=False)


def write(path: Path, lines: Iterator[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def measured(*arguments: str) -> dict[str, Any]:
    """The seconds and the peak memory of a diagnosis in a process of its own."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "turnwise", "diagnose", *arguments, "--json"], stdout=subprocess.PIPE)
    printed = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = round(time.monotonic() - begin, 1)
    diagnosis = json.loads(printed) if status == 0 else {}
    read = {key: diagnosis.get(key) for key in ("attempts", "turns")} | {"findings": len(diagnosis.get("findings", ()))}
    processor = round(usage.ru_utime + usage.ru_stime, 1)
    return {"seconds": seconds, "processor_seconds": processor, "peak_mb": round(usage.ru_maxrss / 1024), **read}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    messages, otel, run = folder / "messages.jsonl", folder / "otel.jsonl", folder / "run"
    if not run.exists():
        write(messages, ({"id": n, "task_id": t, "success": w, "messages": conversation(t, turns)} for n, t, turns, w in attempts()))
        write(otel, spans())
        write_run(run)
    options = {messages: [], otel: ["--task", "task.id", "--outcome", "reward"], run: []}
    for path, more in options.items():
        size = sum(part.stat().st_size for part in ([path] if path.is_file() else path.rglob("*")))
        print(json.dumps({"log": path.name, "mb": round(size / 1e6), **measured(str(path), *more)}))


if __name__ == "__main__":
    main()
