"""No wait without a deadline: a search through the source of the rooms that work with other processes, and what happens when the other
side never answers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import torch
from native_models import make
from waits import all_waits

from turnwise import TurnwiseError
from turnwise.cluster import worker
from turnwise.cluster.work import Spec, Work
from turnwise.cluster.worker import RolloutWorker
from turnwise.engines.base import Request, Sampling
from turnwise.engines.vllm import VllmEngine

CPU = torch.device("cpu")
ALLOWED = {
    ("cluster/start.py", "leave", "ray.shutdown()"): "at the end of a run: Ray ends its own processes, and kills those that do not end",
    ("cluster/start.py", "_greets", "connection.recv(64)"): "the socket has the time limit that it was connected with",
    ("cluster/weights.py", "Ipc.publish", "torch.cuda.synchronize()"): "waits for kernels of this process alone: there is one learner",
    ("engines/vllm/compat.py", "Core.close", "engine.engine_core.shutdown()"): "vLLM gives its workers some seconds, and then kills them",
}


def test_every_wait_in_these_rooms_has_a_deadline_or_a_reason() -> None:
    found = all_waits()
    extra = [f"turnwise/{file}, {function}: {call}" for file, function, call in found if (file, function, call) not in ALLOWED]
    assert not extra, f"waits without a deadline: {'; '.join(extra)}. Give them one, or say in ALLOWED why they end"
    assert set(ALLOWED) == set(found), "a reason for a wait that is no longer there"


# -- vLLM --------------------------------------------------------------------------------------------------------------------------------


def test_an_engine_that_draws_nothing_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)
    made = VllmEngine(make("qwen2"), max_batch=2, max_length=64, self_check=False, stop_token_ids=())
    monkeypatch.setattr("turnwise.engines.vllm.engine.STALLS", 0.0)  # every step is looked at
    made.submit([Request(0, [1, 2, 3], Sampling(temperature=0.0, max_tokens=9))])
    (found,) = made.poll()
    assert len(found.token_ids) == 9
    monkeypatch.setattr(fake_vllm.LLMEngine.made[-1], "step", list)
    made.submit([Request(1, [1, 2, 3], Sampling())])
    with pytest.raises(TurnwiseError, match=r"makes no progress: .*no token for 1 requests"):
        made.poll()
    assert made.dead


# -- an engine's process ------------------------------------------------------------------------------------------------------------------


def test_an_actor_whose_playing_thread_has_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOKS", 0.01)

    def fails(hooks: Any) -> Any:
        raise TurnwiseError("no model here")

    actor = RolloutWorker(fails)
    with pytest.raises(TurnwiseError, match="no model here"):
        actor.ready()
    for call in (lambda: actor.run(Work("s", Spec(), ())), lambda: actor.publish(1, None), lambda: actor.group(0, Spec(), [])):
        with pytest.raises(RuntimeError, match="ended without an answer"):
            call()


def test_an_actor_waits_for_as_long_as_its_thread_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOKS", 0.01)

    def slow(hooks: Any) -> Any:
        time.sleep(0.1)  # many looks
        return SimpleNamespace(environments=1.5, close=lambda: None)

    actor = RolloutWorker(slow)
    actor.ready()
    assert actor.status()["environments"] == 1.5
    actor.close()
