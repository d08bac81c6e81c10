"""The loop end to end at the smallest size: it learns, it resumes exactly, it stops when asked, and its errors are clear."""

from __future__ import annotations

import json
import random
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cli
from launching import Launched, python
from train_cases import BANDIT, TINY, Heard, Impatient, ended_alike, start, wait_for, weights, without_times

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.api import train_config
from turnwise.collect.vocabulary import environment_texts
from turnwise.learn import checkpoint, saving
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import to_toml
from turnwise.runs import folder as runs
from turnwise.runs.folder import Run
from turnwise.runs.reporter import Reporter
from turnwise.setup.warmstart import WarmStart

WARM: dict[str, Any] = {
    "env.name": "numberline",
    "env.tasks": 18,
    "env.max_turns": 4,
    "agent.max_prompt_tokens": 400,
    "model.tiny.max_length": 512,
    "iterations": 1,
    "sft.tasks": 18,
    "sft.epochs": 3,
    "sft.batch_tokens": 64,
}


def test_a_warm_start_ends_when_enough_tasks_are_won(tmp_path: Path) -> None:
    changes = {**WARM, "sft.epochs": 4, "sft.look_tasks": 4}
    easy = start(tmp_path / "easy", **changes, **{"sft.until": 1e-9})  # reached at once: no task need be won
    hard = start(tmp_path / "hard", **changes, **{"sft.until": 1.0})
    assert easy.metrics[0]["sft/steps"] > 0
    assert easy.metrics[0]["time/sft"] > 0 and "time/iteration" not in easy.metrics[0]  # it is no iteration: means over them leave it out
    assert easy.metrics[0]["sft/steps"] <= hard.metrics[0]["sft/steps"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tw.api.Result:  # type: ignore[name-defined]
    """A run with the settings above, for tests that only read it."""
    return start(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> tw.api.Result:  # type: ignore[name-defined]
    """A run with a warm start, for tests that only read it."""
    return start(tmp_path_factory.mktemp("warmed"), **WARM)


def test_a_run_leaves_everything_that_it_says(tmp_path: Path) -> None:
    result = start(tmp_path, **{"eval.every": 2})
    assert {path.name for path in result.folder.iterdir()} >= {
        "config.toml",
        "metrics.jsonl",
        "rollouts",
        "checkpoints",
        "model",
        "summary.json",
    }
    summary = json.loads((result.folder / "summary.json").read_text())
    assert {"success_before", "success_after", "panel_size", "train_seconds", "turns"} <= set(summary)
    assert summary["finished"] and summary["panel_size"] == 4 and summary["turns"] == 4 * 8 * 2
    assert [line["iteration"] for line in result.metrics] == [0, 1, 2, 3, 4]
    assert [("eval/success" in line) for line in result.metrics] == [True, False, True, False, True]
    assert Config.load(result.folder / "config.toml").env.name == BANDIT
    rows = Run.open(result.folder).trajectories(4)
    assert len(rows) == 8 and all(len(row["turns"]) == 2 for row in rows)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(result.folder / "model")
    AutoTokenizer.from_pretrained(result.folder / "model")


def test_the_better_of_two_actions_is_learned(tmp_path: Path) -> None:
    result = start(
        tmp_path,
        iterations=40,
        **{
            "learner.lr": 1e-2,
            "credit.gamma": 0.0,
            "collect.groups": 4,
            "collect.group_size": 8,
            "run.checkpoint_every": 40,
            "eval.temperature": 0.0,
        },
    )
    rewards = [line["collect/reward"] for line in result.metrics if "collect/reward" in line]
    assert rewards[-1] > 1.9 > 1.6 > rewards[0]
    assert result.summary["success_after"] == 1.0


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path, plain: Any) -> None:
    one, two, other = plain, start(tmp_path), start(tmp_path, seed=1)
    assert [two.folder.name, other.folder.name] == ["try", "try-2"]
    assert ended_alike(one, two) and without_times(two.metrics) != without_times(other.metrics)


ALONE = {entry.needed({}): entry.name for entry in tw.credit.algorithms if tw.credit.stands_alone(entry)}


@pytest.mark.parametrize("context", ["window", "full"])
@pytest.mark.parametrize("name", ALONE.values())
def test_an_algorithm_of_each_set_of_needs_trains_with_what_it_needs(tmp_path: Path, name: str, context: str) -> None:
    changes: dict[str, Any] = {"credit.name": name, "agent.context": context, "iterations": 1, "objective.kl": "loss"}
    for need in tw.credit.algorithms[name].needed({}):
        if need.endswith(".value"):
            changes |= {"learner.value.level": need.partition(".")[0], "objective.kl": "reward"}
    result = start(tmp_path, **changes)
    assert result.summary["finished"] and result.metrics[-1]["learner/steps"] == 1
    assert result.metrics[1]["learner/engine_gap_max"] < 1e-4  # the learner's log-probs are the engine's


LONGER: dict[str, Any] = {**TINY, "name": "try", "iterations": 8, "eval.every": 3, "run.checkpoint_every": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tw.api.Result:  # type: ignore[name-defined]
    return tw.train(**LONGER, out=str(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("moment", [1, 3])
def test_a_run_that_was_killed_and_resumed_equals_one_that_was_not(tmp_path: Path, moment: int, whole: Any) -> None:
    process = Launched({**LONGER, "out": str(tmp_path / "killed")})
    run = tmp_path / "killed" / "try"
    chance = random.Random(moment)
    if moment == 3:  # while a checkpoint is being written
        wait_for(lambda: any((run / "checkpoints").glob(".*")) and (run / "checkpoints" / "step-00000002").exists(), process)
    else:
        wait_for(lambda: len(list((run / "checkpoints").glob("step-*"))) > moment, process)
        time.sleep(chance.random() * 0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = tw.train(resume=run)
    assert resumed.summary["finished"]
    assert ended_alike(resumed, whole)


def test_ctrl_c_in_the_warm_start_ends_it_and_the_run_starts_anew(tmp_path: Path, warmed: Any) -> None:
    steps: list[float] = []

    class Counting(Impatient):
        def advance(self, amount: int = 1, unit: str = "attempts") -> None:
            steps.extend([amount] if unit == "attempts" else [])

    stopped = start(tmp_path, reporter=Counting("warm start"), **WARM)
    assert stopped.interrupted and sum(steps) < WARM["sft.tasks"] and stopped.metrics == []
    assert without_times(tw.train(resume=stopped.folder).metrics) == without_times(warmed.metrics)


@pytest.mark.parametrize("nth", [1, 2])
def test_ctrl_c_in_an_evaluation_keeps_what_was_learned_before_it(
    tmp_path: Path, nth: int, warmed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = start(tmp_path, reporter=Impatient("evaluation", nth), **WARM)
    assert stopped.interrupted and len(stopped.metrics) == nth - 1
    with monkeypatch.context() as patch:
        patch.setattr(WarmStart, "__call__", lambda *rest: pytest.fail("the warm start was made again"))
        resumed = tw.train(resume=stopped.folder)
    assert ended_alike(resumed, warmed)
    scores = [checkpoint.load(path).score for path in checkpoint.checkpoints(resumed.folder / "checkpoints")]
    assert scores == [line["eval/success"] for line in resumed.metrics]  # what came out is known to the checkpoints too


def test_adapters_are_warmed_up_and_keep_the_base_model_as_reference(tmp_path: Path) -> None:
    result = start(tmp_path, **WARM, **{"model.lora.rank": 2, "objective.kl": "loss"})
    assert result.summary["finished"] and result.metrics[1]["learner/kl_ref_k3"] > 0


def test_a_corrupt_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, plain: Any) -> None:
    config = Config.load(None, {**TINY, "out": str(tmp_path), "name": "try"})
    run = Run.create(tmp_path, "try", to_toml(config))
    train_config(config, run)
    newest = checkpoint.checkpoints(run.checkpoints)[-1]
    file = newest / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    heard = Heard()
    again = train_config(config, run, heard)
    assert any("damaged" in text for text in heard.notes)
    assert without_times(again.metrics) == without_times(plain.metrics)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.path": "/nowhere/at/all"}, "/nowhere/at/all: no such folder"),
        ({"sft.tasks": 4}, r"has no expert for the recipe's warm start.*sft=none"),
        ({"agent.prompt": "thnk"}, "think"),
        ({"engine.name": "native", "engine.options.prefill": 3}, "prefill_tokens"),
        ({"engine.options.autocast": "bfloat"}, "bfloat16"),
        ({"eval.split": "valdi"}, "valid"),
        ({"eval.n": 5000}, "ask for fewer"),
        ({"reward": [{"name": "own", "function": "/nowhere/terms.py:own"}]}, "/nowhere/terms.py"),
        ({"device": "cuda"}, "no GPU"),
        ({"engine.name": "openai", "engine.url": "http://127.0.0.1:9/v1", "engine.model": "a-model"}, "weights cannot be trained"),
    ],
)
def test_wrong_settings_end_with_a_clear_error_before_any_work_and_leave_no_run(
    tmp_path: Path, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if "sft.tasks" not in changes:
        changes = {**changes, "sft.tasks": 4}  # a warm start, which would end in another error: there is no expert
    with pytest.raises(TurnwiseError, match=words):
        start(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_takes_its_time_at_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    released = threading.Event()

    class Notes(Reporter):
        def note(self, text: str) -> None:
            said.append(text)
            released.set()

    def slow_words(*rest: Any, **more: Any) -> Any:
        assert released.wait(20), "nothing was said while the environment took its time"
        return environment_texts(*rest, **more)

    monkeypatch.setattr("turnwise.setup.environment.PATIENCE", 0.05)
    monkeypatch.setattr("turnwise.setup.build.environment_texts", slow_words)
    start(tmp_path, reporter=Notes(), **{"iterations": 1, "eval.n": 1})
    assert "still playing environment" in said[0] and "does its reset or step return?" in said[0]


@pytest.mark.parametrize(("dtype", "in_hardware", "warned"), [("bfloat16", False, 1), ("float32", False, 0)])
def test_a_recipe_whose_numbers_this_processor_must_emulate_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, in_hardware: bool, warned: int
) -> None:
    monkeypatch.setattr("turnwise.learn.models.computes_bfloat16", lambda: in_hardware)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        start(tmp_path, **{"model.dtype": dtype, "device": "cpu", "iterations": 1, "eval.n": 1})
    assert sum("set model.dtype=float32" in str(warning.message) for warning in found) == warned


def test_evaluation_tasks_must_not_be_training_tasks(tmp_path: Path) -> None:
    source = tmp_path / "leaky.py"
    source.write_text(
        (ROOT / "tests" / "support" / "bandit_env.py").read_text()
        + "\n\nfrom turnwise import Task, TaskSet\n\n\nclass Leaky(Bandit):\n"
        + "    def tasks(self, split):\n        return TaskSet([Task(str(i), split) for i in range(8)])\n"
    )
    with pytest.raises(TurnwiseError, match="training tasks too"):
        start(tmp_path, **{"env.name": f"{source}:Leaky"})


def test_a_model_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    folder = start(tmp_path, iterations=0).folder / "model"
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(TurnwiseError, match="tokenizer"):
        start(tmp_path, **{"model.path": str(folder)})


@pytest.mark.parametrize(
    ("module", "part", "step", "words"),
    [
        (runs, "write_texts", 4, r"disk full\?.*--resume"),
        (runs, "write_text_atomically", 4, r"disk full\?.*--resume"),
        (checkpoint, "save_file", 3, r"those before it are untouched.*disk full"),
    ],
)
def test_a_full_disk_anywhere_in_the_run_is_a_clear_error_and_loses_nothing(
    tmp_path: Path, module: Any, part: str, step: int, words: str, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(module, part)

    def full(*given: Any) -> Any:
        if any(f"{step:06}" in str(one) for one in given if isinstance(one, Path)):
            raise OSError(28, "No space left on device")
        return real(*given)

    monkeypatch.setattr(module, part, full)
    with pytest.raises(TurnwiseError, match=words):
        start(tmp_path)
    monkeypatch.undo()
    assert checkpoint.latest_good(tmp_path / "try" / "checkpoints").step == step - 1  # type: ignore[union-attr]
    assert without_times(tw.train(resume=tmp_path / "try").metrics) == without_times(plain.metrics)


def test_a_model_that_cannot_be_written_is_written_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap = saving._swap

    def full(new: Path, path: Path) -> None:
        if path.name == "model":
            raise OSError(28, "No space left on device")
        swap(new, path)

    monkeypatch.setattr(saving, "_swap", full)
    monkeypatch.setattr(checkpoint, "write_folder", lambda path, fill: (path.mkdir(parents=True), fill(path)))
    with pytest.raises(TurnwiseError, match=r"could not be written.*disk full"):
        start(tmp_path)
    monkeypatch.undo()
    assert weights(tw.train(resume=tmp_path / "try").folder)


def test_a_run_and_its_model_can_be_evaluated_and_exported(tmp_path: Path) -> None:
    result = start(tmp_path)
    found = tw.evaluate(result.folder, n=4, temperature=0.0)
    assert found.success.n == 4 and found.panel_size == 4
    again = tw.evaluate(
        result.folder / "model",
        env=BANDIT,
        split="valid",
        n=4,
        temperature=0.0,
        **{k: v for k, v in TINY.items() if k.startswith(("agent", "engine"))},
    )
    assert again.panel_hash == found.panel_hash and again.to_dict() == found.to_dict()
    with pytest.raises(TurnwiseError, match="neither a run"):
        tw.evaluate(tmp_path)
    out = tw.export(result.folder, tmp_path / "exported", best=True)
    assert (out / "config.json").is_file()
    for path in result.folder.glob("checkpoints/*/manifest.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"score": None}))
    with pytest.raises(TurnwiseError, match="the best is not known"):
        tw.export(result.folder, tmp_path / "best", best=True)
    shutil.rmtree(result.folder / "checkpoints")
    with pytest.raises(TurnwiseError, match=r"its trained model lies in .*model"):
        tw.export(result.folder, tmp_path / "last")


def test_a_run_can_be_evaluated_while_it_writes_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, found = saving._swap, []

    def meanwhile(new: Path, path: Path) -> None:
        if path == tmp_path / "try" / "model":
            found.append(tw.evaluate(tmp_path / "try", n=2))
        real(new, path)

    monkeypatch.setattr(saving, "_swap", meanwhile)
    assert start(tmp_path).summary["finished"] and len(found) == 1


def test_prompts_that_never_fit_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match=r"8 of 8 attempts .*agent.max_prompt_tokens"):
        start(tmp_path, **{"agent.prompt": "think", "iterations": 1})


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    run = start(tmp_path, iterations=0).folder
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.txt").write_text("keep me")
    with pytest.raises(TurnwiseError, match="not empty"):
        tw.export(run, tmp_path / "letters")
    with pytest.raises(TurnwiseError, match="is a file"):
        tw.export(run, tmp_path / "letters" / "one.txt")
    assert (tmp_path / "letters" / "one.txt").read_text() == "keep me"
    with pytest.raises(TurnwiseError, match="without adapters"):
        tw.export(run, tmp_path / "adapters", merged=False)
    (tmp_path / "empty").mkdir()
    assert (tw.export(run, tmp_path / "empty") / "config.json").is_file()


def test_a_hundred_iterations_do_not_grow_the_process(tmp_path: Path) -> None:
    """In a process of its own, so that what other tests hold does not count."""
    code = (
        "import ctypes, gc, json, sys, turnwise as tw\n"
        "from turnwise.report.progress import Reporter\n"
        "sizes, libc = [], ctypes.CDLL(None)\n"
        "class Scale(Reporter):\n"
        "    def iteration(self, number, metrics):\n"
        "        gc.collect(), libc.malloc_trim(0)\n"  # what the allocator holds back is no growth
        "        sizes.append(int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6)\n"
        "tw.train(reporter=Scale(), **json.loads(sys.argv[1]))\n"
        "print(json.dumps([max(sizes[:50]), max(sizes[50:])]))\n"
    )
    settings = {**TINY, "out": str(tmp_path), "iterations": 100, "run.checkpoint_every": 25, "run.keep_rollouts": 2}
    done = python("-c", code, json.dumps(settings))
    assert done.returncode == 0, done.stderr
    early, late = json.loads(done.stdout.splitlines()[-1])
    assert late - early < 4, f"{early:.1f} MB in fifty iterations, {late:.1f} MB in fifty more"


def overrides(**changes: Any) -> list[str]:
    def word(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [f"{key}={word(value)}" for key, value in {**TINY, **changes}.items() if key != "env.name"]


def test_an_environment_of_ones_own_trains_from_the_command_line(tmp_path: Path, here: Cli) -> None:
    done = here("train", "--env", BANDIT, *overrides(iterations=2), "sft.tasks=8", "sft.steps=2")
    assert done.returncode == 0, done.stderr
    assert "played at random" in done.stdout and "iteration 2/2" in done.stdout and "held-out tasks" in done.stdout
    attempts = done.stdout.partition("Three attempts")[2]
    assert attempts.count("solved") == 3
    run = tmp_path / "runs" / "own-env"
    assert "turnwise train runs/own-env/config.toml credit.name=grpo" in done.stdout
    assert (run / "curve.png").read_bytes()[:4] == b"\x89PNG"
    measured = here("eval", str(run), "--n", "4", "--json")
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["attempts"] == 4


def test_a_dry_run_shows_the_recipe_and_what_would_happen(tmp_path: Path, here: Cli) -> None:
    done = here("train", "--env", BANDIT, "--dry-run", *overrides(), "env.max_turns=2")
    assert done.returncode == 0, done.stderr
    assert "[credit]" in done.stdout and "2 tasks × 4 attempts × at most 2 turns = 16 turns" in done.stdout and "parameters" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_run_needs_nothing_that_only_posix_has(tmp_path: Path) -> None:
    """As far as that can be tried elsewhere: what Windows lacks is taken away, and folders cannot be opened."""
    code = (
        "import json, os, signal, sys, torch\nfrom transformers import AttentionInterface, LlamaForCausalLM\n"
        "real = os.open\n"
        "def opened(path, *rest, **more):\n"
        "    if os.path.isdir(path):\n"
        "        raise PermissionError(13, 'Permission denied', str(path))\n"
        "    return real(path, *rest, **more)\n"
        "os.open = opened\n"
        "del os.sysconf, os.killpg, os.register_at_fork, signal.SIGKILL, signal.pthread_kill\n"
        "import turnwise as tw\n"
        "print(tw.train(**json.loads(sys.argv[1])).summary['finished'])\n"
    )
    settings = {**TINY, "out": str(tmp_path), "engine.name": "native"}
    done = python("-c", code, json.dumps(settings))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]
