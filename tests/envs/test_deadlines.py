"""No wait without a deadline: a search through the source of the rooms that work with other processes, and what happens when the other
side never answers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
import torch
from native_models import make
from waits import all_waits

from turnwise import TurnwiseError
from turnwise.cluster import worker
from turnwise.cluster.start import free_port
from turnwise.cluster.weights import Arriving, exchange, sender
from turnwise.cluster.work import Spec, Work, portable
from turnwise.cluster.worker import RolloutWorker
from turnwise.engines.base import Request, Sampling
from turnwise.engines.vllm import VllmEngine
from turnwise.util.deadlines import within

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


def test_what_does_not_end_in_time_is_an_error_and_errors_of_the_work_are_its_own() -> None:
    assert within(30.0, "adding", lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        within(30.0, "dividing", lambda: 1 / 0)

    def late() -> None:
        raise TimeoutError("of the work itself")

    with pytest.raises(TimeoutError, match="of the work itself"):
        within(30.0, "waiting", late)
    over = threading.Event()
    with pytest.raises(TimeoutError, match=r"waiting for nothing did not end within 0\.05 seconds"):
        within(0.05, "waiting for nothing", lambda: over.wait(60))
    over.set()


# -- weights between processes ------------------------------------------------------------------------------------------------------------


class Group:
    """A process group whose broadcasts end as they are told: True, never (False), or with an error."""

    def __init__(self, *ends: bool | Exception):
        self.ends, self.aborted, self.made = list(ends), 0, 0

    def broadcast(self, tensors: list[torch.Tensor], root: Any) -> Any:
        end, self.made = self.ends[self.made], self.made + 1

        def wait(limit: Any) -> None:
            if isinstance(end, Exception):
                raise end

        return SimpleNamespace(is_completed=lambda: end is not False, wait=wait)

    def abort(self) -> None:
        self.aborted += 1


def test_a_broadcast_that_does_not_end_is_aborted() -> None:
    tensors = [torch.zeros(2)] * 3
    good, hangs, fails = Group(True, True, True), Group(True, False, True), Group(True, RuntimeError("the other side is gone"), True)
    exchange(good, tensors, 30.0)
    assert (good.made, good.aborted) == (3, 0)
    with pytest.raises(TimeoutError, match=r"not broadcast within 0\.02 seconds"):
        exchange(hangs, tensors, 0.02)
    with pytest.raises(RuntimeError, match="the other side is gone"):
        exchange(fails, tensors, 30.0)
    assert hangs.aborted == fails.aborted == 1


def test_an_engine_whose_weights_never_come_says_so_and_is_replaced() -> None:
    meeting = Arriving("127.0.0.1", free_port(), 1, 2, 0.3, (("a", (2,), "float32"),))
    with pytest.raises(Exception, match=r"did not end within|timed out|Timeout") as caught:
        meeting.tensors(CPU)
    assert not isinstance(portable(caught.value), TurnwiseError)  # which would end the run instead of replacing the engine


def test_the_learner_does_not_wait_for_an_engine_that_never_comes() -> None:
    pytest.importorskip("ray")
    sends = sender("broadcast", lambda: [("a", torch.zeros(2))], CPU, 0.3)
    sends.publish(1)
    before = set(threading.enumerate())
    sends.send(SimpleNamespace(publish=SimpleNamespace(remote=lambda version, arriving: None)))
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


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
