"""Baselines by prompting: what each agent is asked, that notes reach the next attempt, and that trials are told apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from openai_server import Handler, serving
from test_eval_server import COUNTER, served
from train_cases import start

from turnwise import TurnwiseError
from turnwise.evaluation.baselines import evaluate

NOTE = "Next time I add one in every turn."


def said(body: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in body["messages"])


def learns(handler: Handler, body: dict[str, Any], before: int) -> None:
    """Waits, until it is told what it noted itself; then it adds."""
    text = said(body)
    if "Write the note alone." in text:
        handler.complete(f"<think>I waited.</think>\n{NOTE}")
    elif NOTE in text:
        handler.complete("<think>my note says so</think><action>add one</action>")
    else:
        handler.complete("<think>let us see</think><action>wait</action>")


def test_reflexion_learns_from_its_own_notes_and_says_success_by_trial() -> None:
    with serving(learns) as server:
        found = evaluate("reflexion", env=COUNTER, n=3, trials=3, **served(server.url))
        asked = Counter("reflection" if "Write the note alone." in said(body) else "turn" for _, body, _ in server.seen)
        reflections = [said(body) for _, body, _ in server.seen if "Write the note alone." in said(body)]
    trials = found.settings["trials"]
    assert [each["success"] for each in trials] == [0.0, 1.0, 1.0] and {each["n"] for each in trials} == {3}
    assert found.success.rate == 1.0 and found.turns == 3.0 and found.panel_size == 3
    assert asked == {"reflection": 3, "turn": 3 * 4 + 3 * 3}  # what is solved is not tried again
    assert all("The counter shows 0." in text and "Your action: wait" in text and "step limit" in text for text in reflections)


def test_notes_of_one_task_do_not_reach_another() -> None:
    def forgetful(handler: Handler, body: dict[str, Any], before: int) -> None:
        handler.complete("" if "Write the note alone." in said(body) else "<action>wait</action>")

    with serving(forgetful) as server:
        found = evaluate("reflexion", env=COUNTER, n=2, trials=2, **served(server.url))
        assert not any("You have tried this very task before" in said(body) for _, body, _ in server.seen)  # empty notes are none
    assert [each["success"] for each in found.settings["trials"]] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("agent", "answer", "words", "not_words"),
    [
        ("plain", "add one", "Answer with one action and nothing else.", "<think>"),
        ("react", "<think>on</think><action>add one</action>", "<think>the thought</think>", "nothing else"),
    ],
)
def test_each_agent_asks_in_its_own_way(agent: str, answer: str, words: str, not_words: str) -> None:
    with serving(lambda handler, body, before: handler.complete(answer)) as server:
        found = evaluate(agent, env=COUNTER, n=2, **served(server.url))
        first = said(server.seen[0][1])
        last = server.seen[-1][1]["messages"]
    assert found.success.rate == 1.0 and found.invalid == 0.0 and found.settings["player"] == agent
    assert words in first and not_words not in first and "Bring the counter to three." in first
    roles = [message["role"] for message in last]
    assert (roles == ["user"]) == (agent == "plain")  # react keeps its thoughts in a dialogue
    if agent == "react":
        assert last[1]["content"] == answer


def test_examples_come_from_the_expert_on_training_tasks() -> None:
    with serving(lambda handler, body, before: handler.complete("<action>look</action>")) as server:
        options = {"env.options": {"size": "tiny"}, "env.max_turns": 30, "env.tasks": 8}
        evaluate("react", env="household", n=1, examples=2, **served(server.url, **options))
        shown = said(server.seen[0][1])
        server.seen.clear()
        evaluate("plain", env="household", n=1, examples=1, **served(server.url, **options))
        bare = said(server.seen[0][1])
    assert shown.count("Another task, solved") == 2 and shown.count("(the task is done)") == 2 and "<action>go to" in shown
    assert bare.count("Another task, solved") == 1 and "<action>" not in bare and "go to" in bare


def test_a_long_attempt_is_cut_to_what_fits_before_it_is_asked_about() -> None:
    with serving(learns) as server:
        changes = {"agent.max_prompt_tokens": 330, "env.max_turns": 12}
        evaluate("reflexion", env=COUNTER, n=1, trials=2, **served(server.url, **changes))
        [text] = [said(body) for _, body, _ in server.seen if "Write the note alone." in said(body)]
    assert "as far as it can be shown" in text and "Turn 12:" in text and "Turn 1:" not in text


@pytest.mark.parametrize("agent", ["plain", "react", "reflexion"])
def test_a_model_here_is_prompted_too(tmp_path: Path, agent: str) -> None:
    run = start(tmp_path, iterations=0).folder
    changes = {"agent.max_prompt_tokens": 900, "model.tiny.max_length": 1024, "engine.max_tokens": 8}
    found = evaluate(agent, run, n=2, trials=2, **changes)
    assert found.success.n == 2 and len(found.trajectories) == 2
    assert found.to_dict() == evaluate(agent, run, n=2, trials=2, **changes).to_dict()


def test_from_the_command_line_with_the_warning_about_trials(tmp_path: Path, here: Cli) -> None:
    with serving(learns) as server:
        asked = ["--url", server.url, "--model", "a-model", "--env", COUNTER, "--n", "2", "--agent", "reflexion", "--trials", "2"]
        words = here("eval", *asked, "--save", "out.json")
        plain = here("eval", *asked, "--json")
    assert words.returncode == 0, words.stderr
    assert "success within 1" in words.stdout and "success within 2" in words.stdout and "only the first row is one attempt" in words.stdout
    assert [each["success"] for each in json.loads(plain.stdout)["trials"]] == [0.0, 1.0]
    assert json.loads((tmp_path / "out.json").read_text())["player"] == "reflexion"


def test_mistakes_are_named(tmp_path: Path, here: Cli) -> None:
    with pytest.raises(TurnwiseError, match="--repeats does not go with it"):
        evaluate("reflexion", env=COUNTER, repeats=2, **served("http://127.0.0.1:9/v1"))
    done = here("eval", "--agent", "reflection", "--env", COUNTER)
    assert done.returncode == 2 and "Did you mean 'reflexion'" in done.stderr
    done = here("eval", "some-model", "--agent", "reakt", "--env", COUNTER)
    assert done.returncode == 2 and "unknown agent 'reakt'. Did you mean 'react'" in done.stderr


def test_prompts_that_never_fit_are_an_error_and_no_failure_of_the_model(tmp_path: Path) -> None:
    run = start(tmp_path, iterations=0).folder
    with pytest.raises(TurnwiseError, match="2 of 2 attempts were ended by a prompt that did not fit"):
        evaluate("react", run, n=2, **{"agent.max_prompt_tokens": 8})
