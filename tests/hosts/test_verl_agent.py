"""verl's agent loop worker plays an environment of Turnwise: the real worker, dataset, queue and trainer. Only the server is a stand-in."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed: make test-hosts ONLY=verl")

import transfer_queue as tq
from batches import Attempt, Turn, expected
from datasets import Dataset
from omegaconf import OmegaConf, open_dict
from transformers import LlamaConfig
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl.workers.rollout.replica import TokenOutput
from verl_rows import WORKER, batch_of, compose_with, config_of, local_cluster, put_tokens, read, trainer_of

import turnwise as tw
from turnwise.hosts import verl_agent
from turnwise.learn.tiny import build_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "trainers" / "verl.md"
CORRIDOR = '''
from turnwise import Observation, Transition

class Corridor:
    """Walk right three times; a step to the right is worth the number of the place that it leads to."""
    max_turns = 4

    def reset(self, task, seed=0):
        self.place = 0
        return Observation("You stand at place 0.", actions=("left", "right"))

    def step(self, action):
        self.place += 1 if action == "right" else -1
        observation = Observation(f"You stand at place {self.place}.", actions=("left", "right"))
        return Transition(observation, float(max(self.place, 0)) if action == "right" else 0.0, self.place == 3, self.place == 3)
'''
SCRIPTS = (["right", "right", "right"], ["left", "right", "right", "right"], ["right", "left", "nonsense", "right"])
WORDS = "You stand at place left right nonsense 0 1 2 3 . - actions Task Observation"


class Server:
    """Stands in for verl's client of its servers: the next response of a script, cut to what was asked for."""

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.script, self.requests = tokenizer, iter(()), []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.requests.append((request_id, list(prompt_ids), sampling_params))
        ids = [*self.tokenizer.encode(next(self.script)), self.tokenizer.eos_token_id][: sampling_params["max_tokens"]]
        versions = {"min_global_steps": len(self.requests), "max_global_steps": len(self.requests)}
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields=versions)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_cluster():
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder without weights, an environment, and a verl dataset of two tasks."""
    build_tokenizer([WORDS]).save_pretrained(tmp_path / "model")
    LlamaConfig(vocab_size=512, hidden_size=32, num_attention_heads=2, architectures=["LlamaForCausalLM"]).save_pretrained(
        tmp_path / "model"
    )
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    rows = verl_agent.dataset("corridor", tw.tasks(f"{tmp_path}/corridor.py:Corridor", n=2))
    Dataset.from_list(rows).to_parquet(tmp_path / "tasks.parquet")
    return tmp_path


def worker_of(folder: Path, agent: dict[str, Any], response_length: int) -> tuple[Any, Server]:
    """verl's worker as its manager makes it, with the file of agent loops that a user writes."""
    loop = {
        "name": "turnwise",
        "_target_": "turnwise.hosts.verl_agent.EnvLoop",
        "env": {"name": f"{folder}/corridor.py:Corridor", "reward_scale": 2.0},
        "agent": {"prompt": "plain", **agent},
        "max_tokens": 8,
    }
    OmegaConf.save(OmegaConf.create([loop]), folder / "loops.yaml")
    config = config_of("sync")
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(folder / "model")
        config.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(folder / "loops.yaml")
        config.actor_rollout_ref.rollout.prompt_length = 200
        config.actor_rollout_ref.rollout.response_length = response_length
    worker = WORKER(config, llm_client=None)
    worker.llm_client = Server(worker.tokenizer)
    return worker, worker.llm_client


def play(worker: Any, server: Server, dataset: Any, scripts: Any, uid: str) -> None:
    """One group of attempts at the first task of a dataset, one after the other."""
    [row] = [{key: value[0] for key, value in collate_fn([dataset[0]]).items()}]
    trajectory = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False}

    async def attempts() -> None:
        for session, script in enumerate(scripts):
            server.script = iter(script)
            fields = {**row, "uid": uid, "session_id": session, "global_steps": 0}
            await worker._run_agent_loop({"temperature": 1.0}, trajectory, trace=False, **fields)

    asyncio.run(attempts())


def attempts_of(server: Server, scripts: Any, uid: str) -> list[Attempt]:
    """What the scripts do in the corridor, said again by hand."""
    attempts = []
    for number, script in enumerate(scripts):
        place, attempt = 0, Attempt(uid, number)
        for action in script:
            there = place + (1 if action == "right" else -1)
            reward = 2.0 * max(there, 0) if action == "right" else 0.0
            ids = [*server.tokenizer.encode(action), server.tokenizer.eos_token_id]
            attempt.turns.append(Turn(f"You stand at place {place}.", [], ids, reward, True, 0.0, [0.0] * len(ids)))
            place = there
        attempts.append(attempt)
    return attempts


@pytest.mark.parametrize("context", ["full", "window"])
def test_an_environment_is_played_and_its_turns_get_their_credit(folder: Path, context: str) -> None:
    worker, server = worker_of(folder, {"context": context}, response_length=1000)
    dataset = RLHFDataset(str(folder / "tasks.parquet"), worker.tokenizer, OmegaConf.create({"filter_overlong_prompts": False}))
    uid = f"{context}-group"
    play(worker, server, dataset, SCRIPTS, uid)
    batch = batch_of("train", 0)
    put_tokens(batch, "old_log_probs", [row["rollout_log_probs"] for row in read(batch, "rollout_log_probs")])
    trainer_of(config_of("sync", "gigpo", "actor_rollout_ref.rollout.response_length=1000", gamma=0.9))._compute_advantage(batch, {})
    fields = ("advantages", "response_mask", "responses", "prompts", "rollout_log_probs", "rm_scores")
    rows = dict(zip(batch.keys, read(batch, *fields), strict=True))
    tags = dict(zip(batch.keys, batch.tags, strict=True))
    attempts, request = attempts_of(server, SCRIPTS, uid), 0
    credit = expected("gigpo", attempts)
    for attempt in attempts:
        keys = [f"{uid}_{attempt.number}_{t if context == 'window' else 0}" for t in range(len(attempt.turns))]
        assert tags[keys[0]]["min_global_steps"] == request + 1
        assert tags[keys[-1]]["max_global_steps"] == request + len(attempt.turns)
        sampled = np.concatenate([rows[key]["responses"][rows[key]["response_mask"] == 1] for key in dict.fromkeys(keys)])
        assert sampled.tolist() == [token for turn in attempt.turns for token in turn.response]
        found = np.concatenate([rows[key]["advantages"][rows[key]["response_mask"] == 1] for key in dict.fromkeys(keys)])
        np.testing.assert_allclose(found, np.concatenate([credit[attempt.number, t] for t in range(len(keys))]), atol=1e-6)
        for t, key in enumerate(keys):  # what the model saw is what it is trained on
            sequence = [*rows[key]["prompts"].tolist(), *rows[key]["responses"].tolist()]
            prompt = server.requests[request + t][1]
            assert sequence[: len(prompt)] == prompt
        request += len(keys)
        row = rows[keys[-1]]
        assert row["rm_scores"].sum() == attempt.outcome
        assert (row["rollout_log_probs"] == np.where(row["response_mask"] == 1, -0.5, 0.0)).all()
    tq.kv_clear(keys=batch.keys, partition_id="train")


def test_an_attempt_that_outgrows_the_response_ends_before_a_row_is_cut(folder: Path) -> None:
    worker, server = worker_of(folder, {"context": "full"}, response_length=30)
    dataset = RLHFDataset(str(folder / "tasks.parquet"), worker.tokenizer, OmegaConf.create({"filter_overlong_prompts": False}))
    play(worker, server, dataset, [["left"] * 4], "long")
    [row] = read(tq.KVBatchMeta(partition_id="train", keys=["long_0_0"], tags=[{}]), "responses", "response_mask", "extra_fields")
    turns = len(row["extra_fields"]["turnwise"]["reward"])
    assert len(row["responses"]) <= 30 and turns < 4
    assert int(np.diff(row["response_mask"], prepend=0).clip(0).sum()) == turns
    tq.kv_clear(keys=["long_0_0"], partition_id="train")


def test_attempts_of_a_group_have_one_request_id_each(folder: Path) -> None:
    worker, server = worker_of(folder, {"context": "window"}, response_length=1000)
    dataset = RLHFDataset(str(folder / "tasks.parquet"), worker.tokenizer, OmegaConf.create({"filter_overlong_prompts": False}))
    play(worker, server, dataset, SCRIPTS[:2], "ids")
    assert [len({name for name, _, _ in server.requests[:3]}), len({name for name, _, _ in server.requests})] == [1, 2]
    tq.kv_clear(keys=list(tq.kv_list("train")["train"]), partition_id="train")


def test_the_page_is_a_run_that_verl_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dataset, its file of agent loops and its command line, with verl's own readers, up to the first request to a server."""
    monkeypatch.chdir(tmp_path)
    blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    exec(blocks["python"], {})
    Path("loops.yaml").write_text(blocks["yaml"])
    build_tokenizer([WORDS]).save_pretrained("model")
    LlamaConfig(vocab_size=512, hidden_size=32, architectures=["LlamaForCausalLM"]).save_pretrained("model")
    words = shlex.split(blocks["bash"].replace("\\\n", ""))[3:]
    lengths = ["actor_rollout_ref.rollout.prompt_length=4096", "actor_rollout_ref.rollout.response_length=4096"]
    config = compose_with([*words, *lengths, "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.model.path=model"])
    assert type(trainer_of(config)).__name__ == "Sync"
    worker = WORKER(config, llm_client=None)
    worker.llm_client = server = Server(worker.tokenizer)
    play(worker, server, RLHFDataset(config.data.train_files, worker.tokenizer, config.data), [["<action>look</action>"] * 50], "page")
    [row] = read(tq.KVBatchMeta(partition_id="train", keys=["page_0_0"], tags=[{}]), "extra_fields")
    assert len(row["extra_fields"]["turnwise"]["reward"]) == len(server.requests) > 1
    assert max(len(ids) for _, ids, _ in server.requests) <= 8192
    assert max(asked["max_tokens"] for _, _, asked in server.requests) == 256
    tq.kv_clear(keys=["page_0_0"], partition_id="train")
