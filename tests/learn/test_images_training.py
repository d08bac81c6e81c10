"""Images end to end: an engine and a learner that agree, and an iteration of GiGPO on pictures."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_cases import credited
from picture_env import BLUE, RED, PictureBandit, PictureWalk, square
from seeing_models import KINDS, model_of, processor_of, seeing
from train_cases import Heard
from typer.testing import CliRunner

import turnwise as tw
from turnwise.agent import Agent, AgentSettings, Parsed
from turnwise.agent.vision import Vision
from turnwise.cli.app import app
from turnwise.collect.collector import Collector, Start
from turnwise.collect.model_policy import ModelPolicy
from turnwise.data.images import picture
from turnwise.data.rollouts import Rollouts, Trajectory
from turnwise.data.tasks import Task
from turnwise.engines.base import Request, Sampling
from turnwise.engines.transformers import TransformersEngine
from turnwise.envs.base import Observation
from turnwise.envs.pool import Pool
from turnwise.learn.learner import Learner
from turnwise.learn.models import load_folder
from turnwise.learn.packing import pack
from turnwise.learn.sections import OptimiserSettings
from turnwise.learn.settings import LearnerSettings
from turnwise.learn.sft import SftSettings, warm_start
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.util.errors import TurnwiseError

HERE = Path(__file__).parents[1]


def attempts(
    model: Any,
    vision: Vision,
    env: Any,
    tasks: int = 2,
    members: int = 3,
    context: str = "window",
    seed: int = 0,
    max_tokens: int = 3,
    **engine: Any,
) -> list[Trajectory]:
    """Play `members` attempts at each of `tasks` tasks."""
    agent = Agent(vision.tokenizer, AgentSettings(prompt="action", context=context, history=1), vision)
    serving = TransformersEngine(model, vision.tokenizer, stop_token_ids=agent.stop_ids, vision=vision, **engine)
    policy = ModelPolicy(serving, agent.context, agent.read, Sampling(max_tokens=max_tokens))
    starts = [
        Start(Task(str(n), "train", {"number": n}), n, n * members + m, n, 1000 * seed + n * members + m)
        for n in range(tasks)
        for m in range(members)
    ]
    return Collector(Pool(env, tasks * members), policy, env.max_turns).run(starts)


@pytest.mark.parametrize("context", ["window", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_learners_logprobs_equal_the_engines(kind: str, context: str) -> None:
    model, processor = seeing(kind)
    vision = Vision(processor)
    trajectories = attempts(model, vision, PictureWalk, context=context)
    learner = Learner(copy.deepcopy(model), LearnerSettings(), vision=Vision(processor))
    packed = pack(trajectories)
    assert packed.images is not None and packed.engine_logprob is not None
    assert len(packed) == (6 if context == "full" else 18)  # a growing dialogue is one sequence, pictures and all
    np.testing.assert_allclose(learner.logprobs(packed), packed.engine_logprob, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_wait_for_each_other_say_what_they_would_say_alone(kind: str) -> None:
    """Positions and pixels are each row's own: a batch of two rows at a time, or one, gives the same tokens."""
    model, processor = seeing(kind)
    vision = Vision(processor)
    said = [
        [turn.response_ids for trajectory in attempts(model, vision, PictureWalk, max_batch=size) for turn in trajectory.turns]
        for size in (1, 2, 64)
    ]
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_says_what_the_model_itself_would_generate(kind: str) -> None:
    model, processor = seeing(kind)
    vision = Vision(processor)
    shown = [picture(square(RED, 16, 24)), picture(square(BLUE, 32, 16))]
    text = f"<|user|>{vision.slot} pick {vision.slot} left<|agent|>"
    ids = vision.encode(text, shown)
    inputs = processor(text=[text], images=[[each.pixels for each in shown]], add_special_tokens=False, return_tensors="pt")
    quiet = {"bad_words_ids": [[token] for token in vision.never_said]}
    wanted = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False, **quiet)[0, len(ids) :].tolist()
    engine = TransformersEngine(model, stop_token_ids=(), vision=vision)
    engine.submit([Request(0, ids, Sampling(temperature=0, max_tokens=6), images=tuple(shown))])
    (response,) = engine.poll()
    assert list(response.token_ids) == wanted


def test_no_response_holds_a_picture_token_even_of_a_model_that_wants_to_say_it() -> None:
    processor = processor_of("llava")
    model, vision = model_of("llava", processor), Vision(processor)
    with torch.no_grad():
        model.lm_head.weight[vision.image_token_id] *= 50
    trajectories = attempts(model, vision, PictureBandit, members=8)
    said = {token for trajectory in trajectories for turn in trajectory.turns for token in turn.response_ids}
    assert vision.image_token_id not in said
    packed = pack(trajectories)
    learner = Learner(model, LearnerSettings(), vision=vision)
    np.testing.assert_allclose(learner.logprobs(packed), packed.engine_logprob, atol=1e-4)


def test_equal_tokens_with_another_picture_are_another_prompt() -> None:
    """Nothing that was computed for one picture serves the next one, though the ids are the same."""
    model, processor = seeing("llava")
    vision = Vision(processor)
    ids = vision.encode(f"<|user|>{vision.slot} pick left right<|agent|>", [picture(square(RED))])
    engine = TransformersEngine(model, stop_token_ids=(), vision=vision)
    sampling = Sampling(temperature=0, max_tokens=3)
    found = []
    for colour, sequence in ((RED, 1), (BLUE, 1), (BLUE, 2)):
        engine.submit([Request(0, ids, sampling, sequence=sequence, images=(picture(square(colour)),))])
        found.append(engine.poll()[0].logprobs)
    assert found[1] == found[2] != found[0]


def test_text_alone_goes_through_a_model_that_sees() -> None:
    model, processor = seeing("qwen2_vl")
    vision = Vision(processor)
    agent = Agent(vision.tokenizer, AgentSettings(prompt="action", context="full"), vision)
    context = agent.context()
    context.start(Task("0", "train", {}), Observation("pick left or right"))
    engine = TransformersEngine(model, stop_token_ids=agent.stop_ids, vision=vision)
    turns = []
    for _ in range(2):
        prompt = context.prompt()
        engine.submit([Request(0, prompt.ids, Sampling(max_tokens=5), seed=3)])
        (response,) = engine.poll()
        turns.append(tw.Turn(0, prompt_ids=prompt.ids, response_ids=response.token_ids, logprobs=response.logprobs))
        context.record(response.token_ids, Parsed("left"), Observation("again"))
    packed = pack([Trajectory(0, 0, turns=turns)])
    assert packed.images is None
    learner = Learner(copy.deepcopy(model), LearnerSettings(), vision=vision)
    np.testing.assert_allclose(learner.logprobs(packed), packed.engine_logprob, atol=1e-4)


def test_images_without_a_processor_are_refused() -> None:
    model, processor = seeing("llava")
    vision = Vision(processor)
    trajectories = attempts(model, vision, PictureBandit, tasks=1, members=1)
    with pytest.raises(TurnwiseError, match="no processor"):
        Learner(copy.deepcopy(model), LearnerSettings()).logprobs(pack(trajectories))
    with pytest.raises(TurnwiseError, match="no processor"):
        TransformersEngine(model).submit([Request(0, [1, 2], Sampling(), images=(picture(square(RED)),))])


@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_of_gigpo_trains_on_pictures(kind: str) -> None:
    processor = processor_of(kind)
    model, vision = model_of(kind, processor), Vision(processor)
    learner = Learner(model, LearnerSettings(optimiser=OptimiserSettings(lr=1e-3)), vision=vision)
    trajectories = attempts(model, vision, PictureWalk, members=6)
    rollouts = Rollouts.from_trajectories(trajectories)
    assert len(rollouts.anchor_table) == 8  # three shades of each task and what comes after: by content, without a word of it in the text
    eyes = {name: value.detach().clone() for name, value in model.named_parameters() if "vision" in name or "visual" in name}
    metrics = learner.update(credited(trajectories), seed=0)
    assert np.isfinite(metrics["loss"]) and metrics["grad_norm"] > 0
    moved = [name for name, value in model.named_parameters() if name in eyes and not torch.equal(value, eyes[name])]
    assert moved  # the gradient reaches the vision tower


def test_a_warm_start_learns_prompts_without_learning_pictures_as_words() -> None:
    processor = processor_of("llava")
    model, vision = model_of("llava", processor), Vision(processor)
    learner = Learner(model, LearnerSettings(), vision=vision)
    examples = attempts(model, vision, PictureBandit)
    settings = SftSettings(steps=3, prompt_weight=1.0, lr=1e-3)
    metrics = warm_start(learner, examples, settings)
    assert metrics["loss_last"] < metrics["loss_first"] < 20
    assert metrics["grad_norm"] < 1e4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that sees, saved as any other."""
    path = tmp_path_factory.mktemp("models") / "llava"
    model, processor = seeing("llava")
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return path


def train(folder: Path, out: Path, reporter: Reporter | None = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "out": str(out),
        "name": "try",
        "model.path": str(folder),
        "device": "cpu",
        "iterations": 1,
        "agent.prompt": "action",
        "agent.max_prompt_tokens": 400,
        "engine.max_tokens": 3,
        "collect.groups": 2,
        "collect.group_size": 4,
        "learner.lr": 1e-3,
        "eval.n": 2,
    }
    return tw.train(reporter=reporter, **settings | changes)


@pytest.mark.parametrize("context", ["window", "full"])
def test_sokoban_trains_from_its_pictures_alone(folder: Path, tmp_path: Path, context: str) -> None:
    heard = Heard()
    changes = {"env.name": "sokoban", "env.options": {"observe": "image", "tile": 4}, "env.tasks": 4, "env.max_turns": 2}
    result = train(folder, tmp_path, heard, **changes, **{"agent.context": context, "engine.name": "native"})
    assert result.summary["finished"] and result.metrics[-1]["learner/grad_norm"] > 0
    assert any("transformers engine serves it" in note for note in heard.notes)
    run = Run.open(result.folder)
    kept, turns = run.images(1), [turn for trajectory in run.trajectories(1) for turn in trajectory["turns"]]
    assert kept and {name for turn in turns for name in turn["images"]} == set(kept)
    assert all(pixels.dtype == np.uint8 and pixels.shape[2] == 3 for pixels in kept.values())
    again = tw.evaluate(result.folder, n=2)  # the trained model was saved with its processor
    assert len(again.trajectories) == 2 and again.trajectories[0].turns[0].images


def test_a_dry_run_counts_the_parameters_of_a_model_that_sees(folder: Path) -> None:
    result = CliRunner().invoke(
        app, ["train", str(HERE.parent / "recipes" / "sokoban-pictures.toml"), "--dry-run", "env.tasks=16", f"model.path={folder}"]
    )
    model = load_folder(folder)[0]
    assert result.exit_code == 0 and f"model: {sum(weight.numel() for weight in model.parameters()):,} parameters" in result.output
