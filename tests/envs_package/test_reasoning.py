"""reasoning-gym as an environment: one answer or several tries, scored by the package, which never evaluates a model's text."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from needing import ready

from turnwise.data.tasks import Task
from turnwise.envs.registry import make, tasks
from turnwise_envs.reasoning.guards import FUNCTIONS, expression

HOSTILE = (
    "__import__('os').system('touch HERE')", "open('HERE', 'w')", "(lambda: open('HERE', 'w'))()", "[open('HERE', 'w')]",
    "x.__class__", "S('open(1)')", "Integral(x, x)", "9**9**9", "((x**9)**9)**9", "1e999999999", "f'{open}'", "x if x else x", "x := 1",
    "'a' * 3", "[1, 2]", "True", "x # y", "x; y", "", "(" * 500,
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_only_plain_arithmetic_is_an_expression(text: str) -> None:
    found = expression(text, {"x", "C"}, FUNCTIONS)
    assert found in (None, "x")  # a comment is gone


def test_an_expression_is_written_again_from_its_tree() -> None:
    assert expression(" 3*x**2 - x/4 +(-2) ", {"x"}) == "3 * x ** 2 - x / 4 + -2"
    assert expression("exp(-x)/sqrt(2) + C", {"x", "C"}, FUNCTIONS) == "exp(-x) / sqrt(2) + C"
    assert expression("x**(3/2)", {"x"}) == "x ** (3 / 2)"
    assert expression("x**x", {"x"}) is None and expression("y", {"x"}) is None and expression("sin(x)", {"x"}) is None


ready("reasoning")

from turnwise_envs.reasoning import generators, guards  # noqa: E402
from turnwise_envs.reasoning.env import ReasoningEnv, extract  # noqa: E402

QUICK = (
    "chain_sum",
    "gcd",
    "ransom_note",
    "isomorphic_strings",
    "polynomial_multiplication",
    "list_functions",
    "pool_matrix",
    "graph_color",
)
EVALUATING = sorted(guards.LITERALS | guards.ARITHMETIC | guards.POLYNOMIALS | guards.INTEGRALS)


def first(name: str, split: str = "train", **options: object) -> tuple[ReasoningEnv, Task]:
    env = make("reasoning", generators=name, **options)
    return env, tasks("reasoning", split, n=1, generators=name)[0]


def test_the_right_answer_wins_in_one_turn() -> None:
    for name in (*QUICK, *EVALUATING, "rubiks_cube", "propositional_logic"):
        env, task = first(name)
        env.reset(task)
        answer = env.expert_action()
        assert answer is not None, name
        done = env.step(f"I think so.\n<answer>{answer}</answer>")
        assert done.done and done.success and done.reward == pytest.approx(1.0), (name, answer)


def test_a_wrong_answer_may_be_tried_again_and_the_right_one_is_never_shown() -> None:
    env, task = first("chain_sum", tries=3)
    start = env.reset(task)
    answer = env.expert_action()
    assert answer is not None and start.anchor == f"{task.id}, 0 tried" and "3 tries left" in start.text
    wrong = env.step("I do not know")
    assert not wrong.done and wrong.reward == 0.0 and wrong.info["score"] == 0.0
    assert "You answered: I do not know" in wrong.observation.text and "Its score is 0.00 of 1" in wrong.observation.text
    assert "2 tries left" in wrong.observation.text and answer not in wrong.observation.text.split()
    right = env.step(answer)
    assert right.done and right.success and right.reward == 1.0 and right.info["measures"] == {"score": 1.0, "tries": 2}


def test_the_rewards_of_several_tries_add_up_to_the_best_score() -> None:
    env, task = first("rubiks_cube", tries=3)  # its scorer gives partial marks
    env.reset(task)
    scores, total = [], 0.0
    for answer in ("R", "no moves", "U U"):
        done = env.step(answer)
        scores.append(done.info["score"])
        total += done.reward
    assert done.done and not done.success
    assert total == pytest.approx(max(scores)) and max(scores) > 0


@pytest.mark.parametrize("name", EVALUATING)
def test_no_text_of_a_model_is_evaluated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env, task = first(name, tries=100)
    env.reset(task)
    for text in HOSTILE[:5]:
        assert env.step(text.replace("HERE", str(tmp_path / "ran"))).reward == 0.0
        assert env.step(f"{text} + 1").reward == 0.0
    assert list(tmp_path.iterdir()) == []


def test_every_place_of_the_package_that_evaluates_text_was_looked_at() -> None:
    known = {name: made_by.__module__ for name, (made_by, _) in generators.DATASETS.items()}
    audited = {known[name] for name in guards.AUDITED | set(guards.LEFT_OUT)}
    folder = Path(sys.modules["reasoning_gym"].__file__ or "").parent
    helpers = {"reasoning_gym.arithmetic.gsm_symbolic.generators_00_49", "reasoning_gym.arithmetic.gsm_symbolic.generators_50_99"}
    for path in folder.rglob("*.py"):
        module = ".".join(("reasoning_gym", *path.relative_to(folder).with_suffix("").parts))
        if re.search(r"(?<![\w.])(eval|exec)\(|parse_expr\(", path.read_text(encoding="utf-8")):
            assert module in audited | helpers, f"{module} evaluates text: look at it, then name it in guards.py"


def test_answers_that_would_cheat_or_hang_score_nothing() -> None:
    for name, text in (
        ("complex_arithmetic", "nan"), ("complex_arithmetic", "nan+nanj"), ("coin_flip", "1e999999999"), ("rubiks_cube", "U999999999"),
        ("rush_hour", "F+999999999"), ("prime_factorization", "x"), ("n_queens", "9**9**9"), ("gcd", "9" * 100_000),
        ("intermediate_integration", "Integral(x, x) + C"),
    ):  # fmt: skip
        env, task = first(name)
        env.reset(task)
        assert env.step(text).info["score"] == 0.0, name


def test_splits_have_seeds_of_their_own_and_levels_are_harder() -> None:
    found = {split: tasks("reasoning", split, n=40, generators=["gcd", "maze"]) for split in ("train", "valid", "test")}
    assert {task.data["generator"] for task in found["train"]} == {"gcd", "maze"}
    assert not found["train"].overlap(found["valid"]) and not found["valid"].overlap(found["test"])
    easy, hard = (make("reasoning", generators="chain_sum", level=level) for level in (0, 5))
    lengths = [len(env.reset(env.tasks("train", n=1)[0]).text) for env in (easy, hard)]
    assert lengths[0] < lengths[1] and easy.tasks("train", n=1)[0].id == "chain_sum-level0-0"
    highest = make("reasoning", generators="caesar_cipher", level=9)  # the package's own levels break its own rules: the highest valid one
    assert highest.reset(highest.tasks("train", n=1)[0]).text


def test_the_answer_is_found_in_what_a_model_says() -> None:
    assert extract("<answer> 3 </answer> or <answer>4</answer>") == "4"
    assert extract("It is easy.\nAnswer: 12 apples") == "12 apples"
    assert extract("the answer is unclear") == "the answer is unclear"
    assert extract("\ud800\x00") == "\ufffd\ufffd"


@pytest.mark.long
def test_every_generator_gives_a_question_that_its_own_answer_wins() -> None:
    env, without, left = make("reasoning"), set(), 0
    for task in tasks("reasoning", "test", n=len(generators.known())):
        env.reset(task)
        answer = env.expert_action()
        if answer is None:
            without.add(task.data["generator"])
        else:
            left += env.step(answer).success
    assert without <= {"boxnet", "rush_hour", "intermediate_integration"}
    assert left == len(generators.known()) - len(without) >= 99
