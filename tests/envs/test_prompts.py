"""Prompts of one's own: rows become tasks, a function scores responses, another makes dialogues, and mistakes are said in words."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from small_runs import TINY
from typer.testing import CliRunner

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.cli.app import app
from turnwise.envs import EpisodeOver
from turnwise.envs.prompts.env import PromptsEnv, worth
from turnwise.envs.prompts.prompt_file import place_of, read_rows

ROWS = [{"prompt": f"{a} + {b} =", "answer": str(a + b), "hint": a} for a in range(10) for b in range(6)]
SMALL = TINY | {
    "iterations": 1,
    "name": "try",
    "model.tiny.vocabulary_tasks": 4,
    "engine.max_tokens": 3,
    "collect.groups": 2,
    "sft.steps": 2,
    "sft.tasks": 8,
}


def right(task: dict[str, Any], response: str) -> bool:
    return response.strip() == task["answer"]


def made(**options: Any) -> PromptsEnv:
    return PromptsEnv(**{"file": ROWS, "score": right, **options})


def task_of(env: PromptsEnv, place: int = 0) -> tw.Task:
    return env.tasks("train")[place]


def test_a_task_is_a_row_and_the_response_is_scored_once() -> None:
    env = made(score=lambda task, response: {"reward": len(response) / 10, "success": True, "length": len(response)})
    task = task_of(env)
    assert env.reset(task).text == task.data["prompt"] and task.data["hint"] in range(10)
    end = env.step("12")
    assert (end.reward, end.done, end.success, end.info) == (0.2, True, True, {"measures": {"length": 2.0}})
    with pytest.raises(EpisodeOver):
        env.step("13")
    assert env.max_turns == 1


def test_a_prompt_is_in_one_split_whatever_else_the_file_has() -> None:
    env = made()
    splits = {split: [task.data["prompt"] for task in env.tasks(split)] for split in ("train", "valid", "test")}
    assert sorted([*splits["train"], *splits["valid"], *splits["test"]]) == sorted(row["prompt"] for row in ROWS) and all(splits.values())
    fewer = made(file=ROWS[:30]).tasks("train")
    assert [task.data["prompt"] for task in fewer] == [p for p in splits["train"] if p in {row["prompt"] for row in ROWS[:30]}]
    assert place_of("the same everywhere") == 1
    assert [task.id for task in fewer][:2] == [str(number) for number, row in enumerate(ROWS, 1) if place_of(row["prompt"]) < 8][:2]


def test_a_row_may_name_what_it_is_a_variant_of() -> None:
    rows = [{"prompt": f"{n} + {n} =", "answer": str(2 * n), **({"cluster": "doubles"} if n % 2 else {})} for n in range(40)]
    tasks = made(file=rows).tasks("train")
    assert {task.cluster for task in tasks} == {"doubles", None} and all(task.data.get("cluster") == task.cluster for task in tasks)


def test_held_out_prompts_may_lie_in_a_file_of_their_own(tmp_path: Path) -> None:
    file, valid = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:50]))
    valid.write_text("\n" + json.dumps({"messages": [{"role": "user", "content": "Hello?"}], "id": "greeting"}) + "\n")
    env = made(file=str(file), valid_file=str(valid))
    assert len(env.tasks("train")) == 50 and [task.id for task in env.tasks("valid")] == ["valid-greeting"]
    assert env.reset(env.tasks("valid")[0]).text == "Hello?"
    valid.write_text(json.dumps(ROWS[3]))
    with pytest.raises(TurnwiseError, match="1 prompts of valid_file are in file too"):
        made(file=str(file), valid_file=str(valid)).tasks("valid")
    with pytest.raises(TurnwiseError, match="split"):
        env.tasks("test")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "has no prompts"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2: not JSON"),
        ('{"text": "a"}', "line 1: a row needs a \"prompt\".*'text'"),
        ('{"prompt": 3}', 'needs a "prompt" that is text'),
        ("[1]", "line 1: a row is an object"),
        ('{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}', "rows 1 and 2 have the same id '1'"),
        ('{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}', "agent.system"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(tmp_path: Path, lines: str, words: str) -> None:
    (tmp_path / "p.jsonl").write_text(lines)
    with pytest.raises(TurnwiseError, match=words):
        read_rows(str(tmp_path / "p.jsonl"))
    with pytest.raises(TurnwiseError, match="there is no file of prompts"):
        read_rows(str(tmp_path / "absent.jsonl"))


@pytest.mark.parametrize(
    ("said", "reward", "success"),
    [(True, 1.0, True), (False, 0.0, False), (1, 1.0, True), (0.99, 0.99, False), ({"reward": 0.5, "success": True}, 0.5, True)],
)
def test_what_a_score_means(said: Any, reward: float, success: bool) -> None:
    assert worth(said, "7") == (reward, success, {})
    assert worth(0.5, "7", success_at=0.5)[1]


@pytest.mark.parametrize("said", [None, float("nan"), float("inf"), "1.0", {"success": True}, [1.0]])
def test_a_score_that_is_no_number_names_the_task(said: Any) -> None:
    with pytest.raises(TypeError, match="task 7"):
        worth(said, "7")


def test_a_reply_function_makes_a_dialogue_that_is_scored_at_its_end() -> None:
    seen: list[Any] = []

    def reply(task: dict[str, Any], history: list[dict[str, str]]) -> str | None:
        return None if history[-1]["content"] == task["answer"] else f"No, not {history[-1]['content']}."

    def score(task: dict[str, Any], response: str, history: list[dict[str, str]]) -> float:
        seen.append([message["role"] for message in history])
        return float(response == task["answer"]) / (len(history) // 2)

    env = made(score=score, reply=reply, max_turns=3, success_at=0.1)
    task = task_of(env)
    env.reset(task)
    first = env.step("x")
    assert (first.observation.text, first.reward, first.done) == ("No, not x.", 0.0, False)
    assert env.step(task.data["answer"]).reward == 0.5 and seen == [["user", "assistant", "user", "assistant"]]
    env.reset(task)
    assert [env.step("x").done for _ in range(3)] == [False, False, True]  # the last turn ends it, without a reply
    with pytest.raises(TurnwiseError, match="max_turns goes with reply"):
        made(max_turns=3)


def test_wrong_functions_are_refused_when_the_environment_is_made() -> None:
    with pytest.raises(TurnwiseError, match="takes \\(task, response\\)"):
        made(score=lambda task: 1)
    with pytest.raises(TurnwiseError, match="are functions"):
        made(score=3)
    with pytest.raises(TurnwiseError, match="prompts need a function that scores"):
        tw.train(prompts=ROWS, quiet=True)
    with pytest.raises(TurnwiseError, match="either prompts or env"):
        tw.train(prompts=ROWS, env="numberline", reward=right, quiet=True)


def test_answers_in_the_rows_are_the_expert() -> None:
    assert made().expert(task_of(made())) == [task_of(made()).data["answer"]]
    assert made(file=[{"prompt": "a", "answer": ["1", "2"]}]).expert(tw.Task("1", data={"answer": ["1", "2"]})) == ["1", "2"]
    for other in ({"prompt": "a"}, {"prompt": "a", "answer": {"tests": 3}}, {"prompt": "a", "answer": True}):
        assert not hasattr(made(file=[other]), "expert")


def test_prompts_train_and_are_measured_from_python(tmp_path: Path) -> None:
    result = tw.train(prompts=ROWS, reward=right, out=str(tmp_path), quiet=True, **SMALL)
    config = tw.Recipe.load(result.folder / "config.toml")
    assert config.env.name == "prompts" and config.agent.prompt == "text"
    assert config.env.options == {"file": "python:prompts", "score": "test_prompts:right"}
    assert result.summary["panel_size"] == len(made().tasks("valid")), "all that are held out"
    assert (result.folder / "objects" / "prompts.jsonl").read_text().count("\n") == len(ROWS)
    assert "sft/loss" in result.metrics[0] and result.metrics[-1]["collect/turns"] == 8
    assert tw.evaluate(result, split="test", quiet=True).panel_size == len(made().tasks("test"))


REWARD = """
def score(task, response):
    return response.strip() == task["answer"]

def reply(task, history):
    return "Again." if len(history) < 4 else None
"""


def test_the_shell_trains_on_prompts_and_on_dialogues(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    typed = [f"{key}={value}" for key, value in SMALL.items()] + [f"out={tmp_path}"]
    names = ["--prompts", f"{tmp_path}/p.jsonl", "--reward", f"{tmp_path}/reward.py:score"]
    runner = CliRunner()
    dialogue = ["--reply", f"{tmp_path}/reward.py:reply", "env.options.max_turns=4", "sft=none"]
    done = runner.invoke(app, ["train", *names, *dialogue, *(text for text in typed if not text.startswith("sft."))])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "try" / "summary.json").read_text())["turns"] == 8 * 2
    shown = runner.invoke(app, ["eval", str(tmp_path / "try"), "--json", "--split", "test"])
    assert json.loads(shown.stdout)["turns"] == 2.0
    missing = runner.invoke(app, ["train", *names[:2], "--dry-run"])
    assert isinstance(missing.exception, TurnwiseError) and "--reward reward.py:score" in str(missing.exception)


def test_the_example_makes_its_prompts_and_scores_them(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "sorting" / "make.py"))
    rows = read_rows([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    score = runpy.run_path(str(ROOT / "examples" / "sorting" / "reward.py"))["score"]
    assert len(rows) == 2000 and all(score(row, row["answer"]) == 1.0 for row in rows)
    assert score({"answer": "1 2 3"}, "1 2 2") == pytest.approx(2 / 3) and score({"answer": "1"}, "") == 0
