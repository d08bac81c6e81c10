"""The OpenEnv client against a small server that speaks OpenEnv's messages."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnwise as tw
from turnwise.data.tasks import Task
from turnwise.envs.check import check
from turnwise.envs.pool import Fault, Pool
from turnwise.util.errors import MissingExtra, TurnwiseError
from turnwise.util.transport import Failure
from turnwise_envs.openenv.wire import http_url

pytest.importorskip("websockets", reason="needs websockets: pip install websockets")
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

SCHEMA = {"action": {"properties": {"message": {"type": "string"}, "metadata": {}}, "required": ["message"]}}


class Guess:
    """The environment on the server: guess a number from 1 to 4."""

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        known = data["index"] % 4 + 1 if "index" in data else random.Random(data["seed"]).randint(1, 4)
        self.number, self.tries = int(data.get("number", known)), 0
        return {"observation": {"text": "Guess.", "legal_actions": [1, 2, 3, 4], "empty": ""}, "reward": None, "done": False}

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        if action["message"] == "boom":
            raise ZeroDivisionError("boom")
        right = action["message"] == str(self.number)
        text = "Right." if right else "Wrong."
        self.tries = getattr(self, "tries", 0) + 1
        metadata = {"tries": self.tries, "step_id": f"step {self.tries}"}
        observation = {"text": text, "solved": right, "metadata": metadata}
        return {"observation": observation, "reward": float(right), "done": right, "metadata": metadata}


class OpenEnvServer:
    """Sessions, of which `free` may be open; the others are turned away."""

    def __init__(self) -> None:
        self.free = 100
        self.silent = False

    def session(self, connection: ServerConnection) -> None:
        if self.free <= 0:
            self.free += 1
            connection.send(json.dumps({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}}))
            return
        env = Guess()
        for raw in connection:
            message = json.loads(raw)
            if message["type"] == "close":
                return
            if self.silent and message["type"] == "step":
                continue
            connection.send(json.dumps(self.answer(env, message)))

    def answer(self, env: Guess, message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "reset":
            return {"type": "observation", "data": env.reset(message["data"])}
        if set(message["data"]) != {"message"}:
            errors = [{"loc": ["message"], "msg": "Field required"}]
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}}
        try:
            return {"type": "observation", "data": env.step(message["data"])}
        except ZeroDivisionError as error:
            return {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}

    def page(self, connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(200, json.dumps(SCHEMA)) if request.path == "/schema" else None


@pytest.fixture
def server() -> Iterator[tuple[str, OpenEnvServer]]:
    spoken = OpenEnvServer()
    listening: Server = serve(spoken.session, "127.0.0.1", 0, process_request=spoken.page)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.socket.getsockname()[1]}", spoken
    listening.shutdown()
    thread.join(timeout=10)


def client(url: str, **options: Any) -> Any:
    return tw.make("openenv", url=url, **{"timeout": 20.0, "first_wait": 0.01, **options})


def test_an_episode_over_a_session(server: tuple[str, OpenEnvServer]) -> None:
    env = client(server[0])
    first = env.reset(Task("1", data={"reset": {"number": 3}}))
    assert (first.text, first.actions) == ("Guess.", ("1", "2", "3", "4"))
    wrong, again = env.step("4"), env.step("4")
    assert (wrong.reward, wrong.done, wrong.info["tries"], again.info["tries"]) == (0.0, False, 1, 2)
    assert wrong.observation.key == again.observation.key, "metadata is no part of the state"
    assert wrong.observation.text == "text: Wrong.\nsolved: False"
    end = env.step('{"message": "3"}')
    assert (end.reward, end.done, end.success) == (1.0, True, True)
    env.close()


class Lists:
    """What a server with task lists answers, by path."""

    def __init__(self, **pages: Any):
        self.pages, self.asked = pages, []

    def get(self, path: str, kind: type) -> list[Any]:
        return list(self._page(path))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body["split"]))
        return dict(self._page(path))

    def _page(self, path: str) -> Any:
        if path not in self.pages:
            raise Failure("HTTP 404: nothing", status=404)
        return self.pages[path]


def with_lists(monkeypatch: pytest.MonkeyPatch, pages: dict[str, Any]) -> Lists:
    lists = Lists(**pages)
    monkeypatch.setattr("turnwise_envs.openenv.wire.Transport", lambda *known: lists)
    return lists


SPLITS = [{"name": "train", "type": "train"}, {"name": "held-out", "type": "validation"}]


def test_the_lists_of_tasks_of_a_server_are_used(server: tuple[str, OpenEnvServer], monkeypatch: pytest.MonkeyPatch) -> None:
    env = client(server[0])
    rows = {"list_environments": ["guess"], "guess/splits": SPLITS, "guess/num_tasks": {"num_tasks": 3}}
    lists = with_lists(monkeypatch, {**rows, "guess/tasks": {"tasks": [{"id": "a", "secret": 1}, "b"]}})
    found = env.tasks("valid")
    assert lists.asked == [("guess/num_tasks", "held-out"), ("guess/tasks", "held-out")]
    assert [task.id for task in found] == ["held-out 0 a", "held-out 1", "held-out 2"]
    assert (
        "secret" not in str(found[0].data) and found[2].split == "valid" and found[2].data == {"reset": {"split": "held-out", "index": 2}}
    )
    monkeypatch.undo()
    env.reset(found[2])
    assert env.step("3").success
    env.close()


def test_a_split_that_the_server_does_not_have_is_named(server: tuple[str, OpenEnvServer], monkeypatch: pytest.MonkeyPatch) -> None:
    env = client(server[0])
    with_lists(monkeypatch, {"list_environments": ["guess"], "guess/splits": SPLITS})
    with pytest.raises(TurnwiseError, match=r"unknown split of the OpenEnv server: 'test'.*Known: held-out, train"):
        env.tasks("test")
    assert len(client(server[0], server_tasks=False).tasks("test", n=4)) == 4


def test_a_server_without_lists_has_numbered_tasks(server: tuple[str, OpenEnvServer], monkeypatch: pytest.MonkeyPatch) -> None:
    env = client(server[0])
    with_lists(monkeypatch, {"list_environments": ["guess"]})
    assert [task.id for task in env.tasks("valid", n=2)] == ["8", "18"]


def test_the_task_is_the_seed_and_the_contract_is_kept(server: tuple[str, OpenEnvServer]) -> None:
    report = check("openenv", url=server[0], turns=10, episodes=3)
    assert report.ok, report.problems
    assert len(tw.tasks("openenv", "valid", n=7, url=server[0])) == 7


def test_a_refused_action_leaves_the_state_and_tells_the_agent(server: tuple[str, OpenEnvServer]) -> None:
    env = client(server[0])
    first = env.reset(Task("1"))
    refused = env.step('{"other": 1}')
    assert refused.observation.text == "That is not an action here: message: Field required\nGuess."
    assert refused.observation.key == first.key and refused.info["understood"] is False
    env.close()


def test_an_error_of_the_environment_is_a_fault_or_an_answer(server: tuple[str, OpenEnvServer]) -> None:
    env = client(server[0])
    env.reset(Task("1"))
    with pytest.raises(TurnwiseError, match="its environment failed: boom"):
        env.step("boom")
    env.reset(Task("1"))
    env.close()
    told = client(server[0], on_error="answer")
    told.reset(Task("1"))
    assert told.step("boom").observation.text == "Error: boom\nGuess."
    told.close()


def test_a_full_server_is_asked_again_and_then_named(server: tuple[str, OpenEnvServer]) -> None:
    url, spoken = server
    spoken.free = -1
    env = client(url, retries=3)
    assert env.reset(Task("1")).text == "Guess."
    env.close()
    spoken.free = -100
    with pytest.raises(TurnwiseError, match=r"CAPACITY_REACHED: full \(tried 2 times\).*max_concurrent_envs"):
        client(url, retries=1).reset(Task("1"))


def test_a_server_that_says_nothing_or_is_not_there_is_an_error(server: tuple[str, OpenEnvServer]) -> None:
    url, spoken = server
    spoken.silent = True
    env = client(url, timeout=2.0)
    env.reset(Task("1"))
    with pytest.raises(TurnwiseError, match="no answer within"):
        env.step("1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(TurnwiseError, match="Is it running"):
        client(nobody, retries=1).reset(Task("1"))


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"reward": float("nan")}, "the reward is 'nan', not a finite number"),
        ({"reward": float("inf")}, "the reward is 'inf'"),
        ({"reward": "much"}, "the reward is 'much'"),
        ({"reward": [1]}, "the reward is '[1]'"),
        ({"done": "no"}, "done is 'no', not true or false"),
    ],
)
def test_a_bad_answer_costs_one_attempt_and_the_next_one_plays(
    server: tuple[str, OpenEnvServer], bad: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = server
    with Pool("openenv", 1, options={"url": url, "timeout": 20.0}) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(Guess, "step", lambda self, action: {"observation": {"text": "?"}, "reward": 0.0, "done": False} | bad)
            pool.reset(0, Task("1"))
            found = pool.step(0, "1")
        assert found.fault is Fault.ERROR and words in found.message and url in found.message
        assert pool.reset(0, Task("2")).fault is None and pool.step(0, "1").fault is None


def test_odd_forms_of_an_answer_are_read_as_far_as_they_go(server: tuple[str, OpenEnvServer], monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = server
    odd = {"observation": ["a", None], "reward": None, "done": None, "metadata": "none"}
    monkeypatch.setattr(Guess, "step", lambda self, action: odd)
    with Pool("openenv", 1, options={"url": url, "timeout": 20.0}) as pool:
        pool.reset(0, Task("1"))
        found = pool.step(0, "1")
    assert found.transition is not None and found.transition.reward == 0.0 and "a" in found.observation.text


def test_turn_limit_success_rule_and_history_anchor(server: tuple[str, OpenEnvServer]) -> None:
    env = client(server[0], max_turns=2, success="info.solved", anchor="history", show=["text"])
    task = Task("1", data={"reset": {"number": 2}})
    keys = [env.reset(task).key, env.step("1").observation.key]
    cut = env.step("1")
    assert cut.observation.text == "Wrong." and cut.done and not cut.success and cut.info["truncated"]
    assert len({*keys, cut.observation.key}) == 3
    env.close()


def test_tasks_come_from_a_file(server: tuple[str, OpenEnvServer], tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "goal": "Guess it.", "reset": {"number": 4}}\n\n{"id": 7, "split": "valid"}\n')
    train = tw.tasks("openenv", url=server[0], tasks_file=str(file))
    assert [(task.id, task.data["goal"]) for task in train] == [("a", "Guess it.")]
    assert [task.id for task in tw.tasks("openenv", "valid", url=server[0], tasks_file=str(file))] == ["7"]
    file.write_text('{"name": "a"}')
    with pytest.raises(TurnwiseError, match="line 1"):
        tw.tasks("openenv", url=server[0], tasks_file=str(file))


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENENV_URL", raising=False)
    with pytest.raises(TurnwiseError, match="OPENENV_URL"):
        tw.make("openenv")
    for wrong in ({"anchor": "pigeon"}, {"timeout": 0.0}, {"success": "luck"}):
        with pytest.raises(TurnwiseError):
            client("http://127.0.0.1:1", **wrong)
    with pytest.raises(TurnwiseError, match="not the address"):
        client("127.0.0.1:8000").reset(Task("1"))
    assert http_url("wss://host:1/a/ws") == "https://host:1/a"
    monkeypatch.setitem(__import__("sys").modules, "websockets", None)
    with pytest.raises(MissingExtra, match=r"pip install .*turnwise-envs\[openenv\]'"):
        client("http://127.0.0.1:1")
