"""The OpenEnv client against a server of the real package, which runs in another Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from needing import OPENENV_PYTHON, openenv_server

import turnwise as tw
from turnwise.data.tasks import Task

pytest.importorskip("websockets", reason="needs websockets: pip install websockets")
if not OPENENV_PYTHON:
    pytest.skip("needs a Python with openenv, named by OPENENV_PYTHON: make test-envs makes one", allow_module_level=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with openenv_server() as address:
        yield address


def test_the_tasks_are_those_of_the_server(url: str) -> None:
    train, valid = (tw.tasks("openenv", split, url=url) for split in ("train", "valid"))
    assert (len(train), len(valid)) == (6, 4) and not train.overlap(valid)
    assert valid[1].id == "validation 1 validation-1" and "hidden" not in str(valid[1].data)
    env = tw.make("openenv", url=url)
    for task, wanted in ((train[2], "3"), (valid[2], "1")):
        env.reset(task)
        end = env.step(wanted)
        assert end.done and end.success and end.reward == 1.0
    env.close()


def test_metadata_is_neither_seen_nor_part_of_the_state(url: str) -> None:
    env = tw.make("openenv", url=url)
    first = env.reset(Task("1", data={"reset": {"index": 0}}))
    assert (first.text, first.actions) == ("Guess a number from 1 to 4.", ("1", "2", "3", "4"))
    one, two = env.step("2"), env.step("2")
    assert one.observation.text == "Wrong." and one.observation.key == two.observation.key
    assert (one.info["step"], two.info["step"]) == (1, 2)
    env.close()
