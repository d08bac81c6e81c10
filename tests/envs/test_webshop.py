"""The WebShop environment: its pages, its contract, its split, its expert, the same episode everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import shared_folder
from webshop_case import write_shop

from turnwise.data.tasks import Task
from turnwise.envs.base import EpisodeOver
from turnwise.envs.check import check
from turnwise.envs.webshop.env import WebShopEnv
from turnwise.envs.webshop.shop_pages import parse
from turnwise.util.errors import TurnwiseError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def env(folder: Path) -> WebShopEnv:
    return WebShopEnv(folder)


@pytest.fixture
def lamp(env: WebShopEnv) -> Task:
    """The goal with the options "red | blue" and "large"."""
    return next(task for split in ("train", "valid") for task in env.tasks(split) if task.id == "B000000001/3")


@pytest.fixture(scope="module")
def real() -> WebShopEnv:
    return WebShopEnv(shared_folder("webshop"))


def _walk(env: WebShopEnv, task: Task, *actions: str) -> str:
    text = env.reset(task).text
    for action in actions:
        text = env.step(action).observation.text
    return text


def test_a_purchase_goes_from_search_to_results_to_item_to_the_end(env: WebShopEnv, lamp: Task) -> None:
    first = env.reset(lamp)
    assert "Your task is: Find me easy clean lamps with color: red | blue, and size: large, and price lower than" in first.text
    assert first.actions == ("search[<your query>]",)
    results = env.step("search[Brass  desk lamp]").observation
    assert results.text.splitlines()[:3] == [
        "Results for: brass desk lamp",
        "Page 1 of 1, 3 products",
        "[B000000001] Brass Desk Lamp ($12.5)",
    ]
    assert results.actions == ("click[back to search]", "click[B000000001]", "click[B000000004]", "click[B000000002]")
    item = env.step("click[b000000001]").observation
    assert item.text.splitlines() == ["B000000001: Brass Desk Lamp", "Price: $12.5", "color: stone wash; red | blue", "size: small; large"]
    assert "click[buy now]" in (item.actions or ()) and "click[red | blue]" in (item.actions or ())
    assert "color: stone wash; red | blue (chosen: red | blue)" in env.step("click[RED  |  Blue]").observation.text
    env.step("click[large]")
    end = env.step("click[buy now]")
    assert (end.reward, end.done, end.success, end.info["score"]) == (1.0, True, True, 1.0)
    assert "with color: red | blue, size: large" in end.observation.text
    with pytest.raises(EpisodeOver, match="something was bought"):
        env.step("search[lamp]")


def test_a_wrong_option_lowers_the_score_and_is_no_success(folder: Path, lamp: Task) -> None:
    actions = ("search[lamp]", "click[B000000001]", "click[stone wash]", "click[large]")
    for reward, expected in (("score", 3 / 4), ("success", 0.0)):
        env = WebShopEnv(folder, reward=reward)  # type: ignore[arg-type]
        _walk(env, lamp, *actions)
        end = env.step("click[buy now]")
        assert (end.reward, end.success, end.info["score"], end.info["options"]) == (expected, False, 3 / 4, 1 / 2)
        assert end.info["measures"] == {"score": 3 / 4}


def test_prev_leads_back_one_page_and_keeps_the_options(env: WebShopEnv, lamp: Task) -> None:
    item = ("search[lamp]", "click[B000000001]", "click[small]")
    assert "All about Brass Desk Lamp." in _walk(env, lamp, *item, "click[description]")
    assert "(chosen: small)" in _walk(env, lamp, *item, "click[features]", "click[< prev]")
    assert _walk(env, lamp, *item, "click[< prev]").startswith("Results for: lamp")
    assert _walk(env, lamp, *item, "click[back to search]") == env.reset(lamp).text
    assert "(chosen" not in _walk(env, lamp, *item, "click[< prev]", "click[B000000001]")


def test_results_come_ten_a_page(real: WebShopEnv) -> None:
    task = real.tasks("valid")[0]
    real.reset(task)
    pages = [real.step("search[black shoes for women]").observation]
    while "click[next >]" in (pages[-1].actions or ()):
        pages.append(real.step("click[next >]").observation)
    shown = [action[6:-1] for page in pages for action in page.actions or () if action.startswith("click[B0")]
    assert shown == real.search("black shoes for women") and len(pages) == 5
    assert "click[< prev]" not in (pages[0].actions or ())
    assert real.step("click[< prev]").observation == pages[3]


@pytest.mark.parametrize(
    "action", ["click[buy now]", "click[B000000001]", "click[]", "search[]", "buy now", "search lamp", "click[small]", "]["]
)
def test_an_action_that_is_not_possible_changes_nothing(env: WebShopEnv, lamp: Task, action: str) -> None:
    seen = env.reset(lamp)
    after = env.step(action)
    assert (after.observation, after.reward, after.done) == (seen, 0.0, False)


def test_a_search_works_from_every_page_and_brackets_may_stand_inside(env: WebShopEnv, lamp: Task) -> None:
    assert _walk(env, lamp, "search[lamp]", "click[B000000001]", "search[hose]").startswith("Results for: hose")
    assert _walk(env, lamp, "search[xyzzy]") == "No product was found for: xyzzy"
    assert parse("search[garden [green] hose] please") == ("search", "garden [green] hose")


def test_the_state_anchor_tells_apart_what_the_text_does_not(folder: Path, lamp: Task) -> None:
    env = WebShopEnv(folder, anchor="state")
    ways = [("search[lamp]", "click[B000000001]"), ("search[desk]", "click[B000000001]")]
    seen = []
    for way in ways:
        env.reset(lamp)
        seen.append([env.step(action).observation for action in way][-1])
    assert seen[0].text == seen[1].text and seen[0].anchor != seen[1].anchor
    assert isinstance(seen[0].anchor, bytes) and len(seen[0].anchor) == 16


def test_options_are_checked(folder: Path) -> None:
    for options, text in (
        ({"colours": "pastel"}, "rule for colours 'pastel'"),
        ({"anchor": "page"}, "anchor 'page'"),
        ({"reward": "money"}, "reward 'money'"),
        ({"goals": "odd"}, "kind of goals 'odd'"),
        ({"products": 0}, "products must be a positive integer"),
    ):
        with pytest.raises(TurnwiseError, match=text):
            WebShopEnv(folder, **options)  # type: ignore[arg-type]
    with pytest.raises(TurnwiseError, match=r"split.*'test'.*Known: train, valid"):
        WebShopEnv(folder).tasks("test")
    with pytest.raises(TurnwiseError, match="is not a WebShop task"):
        WebShopEnv(folder).reset(Task("3"))


def test_human_goals_ask_for_values_without_names(folder: Path) -> None:
    env = WebShopEnv(folder, goals="human")
    (task,) = env.tasks("train")
    assert task.data["goal"].startswith("i want a small lamp, and price lower than")
    env.reset(task)
    ends = [env.step(action) for action in env.expert(task)]
    assert ends[-1].success and "size: small" in ends[-1].observation.text


def test_the_expert_wins_from_wherever_the_shopper_is(env: WebShopEnv, lamp: Task) -> None:
    for way in (
        (),
        ("search[kettle]",),
        ("search[lamp]", "click[B000000004]", "click[reviews]"),
        ("search[lamp]", "click[B000000001]", "click[small]"),
    ):
        _walk(env, lamp, *way)
        for _ in range(10):
            end = env.step(env.expert_action())
            if end.done:
                break
        assert end.success
    with pytest.raises(EpisodeOver):
        env.expert_action()


def test_the_scripted_shopper_buys_the_first_result_with_the_named_options(env: WebShopEnv, lamp: Task) -> None:
    env.reset(lamp)
    actions, end = [], None
    while end is None or not end.done:
        actions.append(env.scripted_action())
        end = env.step(actions[-1])
    assert actions[1:] == ["click[B000000001]", "click[red | blue]", "click[large]", "click[buy now]"] and end.success
    env.reset(lamp)
    env.step("search[xyzzy]")
    assert env.scripted_action() == "click[back to search]"


def test_five_hundred_goals_are_held_out_and_never_in_train(real: WebShopEnv) -> None:
    train, valid = real.tasks("train"), real.tasks("valid")
    assert (len(train), len(valid)) == (6410, 500)
    assert not train.overlap(valid) and len({task.id for split in (train, valid) for task in split}) == 6910
    said = [{(task.data["product"], str(task.data["options"])) for task in split} for split in (train, valid)]
    assert not said[0] & said[1]
    assert valid.hash == "b2b4df352f1497b7a03a4cefcc026827" and train.hash == "000371bf0f6fd10a7e44c353f1ec03d9"


def test_the_expert_scores_one_on_real_goals_within_the_turn_limit(real: WebShopEnv) -> None:
    for task in real.tasks("valid")[:200]:
        plan = real.expert(task)
        real.reset(task)
        ends = [real.step(action) for action in plan]
        assert ends[-1].reward == 1.0 and ends[-1].success and len(plan) <= real.max_turns


def test_the_checker_finds_no_fault() -> None:
    report = check("webshop", data=str(shared_folder("webshop")))
    assert report.ok, report.problems
