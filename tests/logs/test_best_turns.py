"""Preference pairs and examples: only what the attempts support, in the context in which it was done; TRL's trainers learn from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Cli

from turnwise.logs.best_turns import surely_better, write_best_turns
from turnwise.logs.reading import read_logs
from turnwise.util.statistics import wilson

HOUSEHOLD = ROOT / "examples" / "logs" / "household.jsonl"


def log(path: Path, attempts: list[tuple[str, bool]]) -> Path:
    """Attempts at one task with one choice each, after a look around."""
    lines = []
    for number, (choice, won) in enumerate(attempts):
        look = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        messages = [
            {"role": "system", "content": "Be quick."},
            {"role": "user", "content": "Open the door."},
            {"role": "assistant", "content": f"Attempt {number}.", "tool_calls": look},
            {"role": "tool", "tool_call_id": "1", "content": "A door and a wall."},
            {"role": "assistant", "content": choice},
        ]
        lines.append(json.dumps({"id": number, "messages": messages, "success": won}))
    path.write_text("\n".join(lines))
    return path


def best_turns(path: Path, folder: Path) -> tuple[list[Any], list[Any]]:
    logs = read_logs([path], keep_attempts=True)
    counts = write_best_turns(folder, logs.trajectories, logs.attempts)
    files = [[json.loads(line) for line in (folder / name).read_text().splitlines()] for name in ("pairs.jsonl", "examples.jsonl")]
    assert counts == (len(files[0]), len(files[1]))
    return files[0], files[1]


def test_a_pair_is_the_same_state_with_a_better_and_a_worse_response(tmp_path: Path) -> None:
    attempts = [("push the door", True), ("push the wall", False), ("push the door", True), ("push the wall", False), ("sing", True)]
    pairs, examples = best_turns(log(tmp_path / "log.jsonl", attempts), tmp_path)
    assert [pair["chosen"] for pair in pairs] == [[{"role": "assistant", "content": "push the door"}]] * 2
    assert [pair["rejected"] for pair in pairs] == [[{"role": "assistant", "content": "push the wall"}]] * 2
    assert [[message["role"] for message in pair["prompt"]] for pair in pairs] == [["system", "user", "assistant", "tool"]] * 2
    assert [pair["prompt"][2]["content"] for pair in pairs] == ["Attempt 1.", "Attempt 3."]  # where the mistake was made
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    assert pairs[0]["prompt"][2]["tool_calls"] == [call]
    said = [example["completion"][0]["content"] for example in examples]
    assert "push the wall" not in said and said.count("push the door") == 2 and "sing" in said


@pytest.mark.parametrize(
    "attempts",
    [
        [("push", True), ("pull", False)],
        [("push", True), ("push", True), ("pull", False)],
        [("push", True), ("push", False), ("pull", False), ("pull", True)],
        [("push", True), ("push", True), ("pull", True), ("pull", True)],
    ],
)
def test_too_little_evidence_gives_no_pair(tmp_path: Path, attempts: list[tuple[str, bool]]) -> None:
    assert not best_turns(log(tmp_path / "log.jsonl", attempts), tmp_path)[0]


def test_the_interval_of_a_difference_is_newcombes() -> None:
    """His example (Statistics in Medicine 1998, method 10): 56 of 70 against 48 of 80 gives 0.0524 to 0.3339."""
    (low, _), (_, high) = wilson(56, 70), wilson(48, 80)
    assert 56 / 70 - 48 / 80 - ((56 / 70 - low) ** 2 + (high - 48 / 80) ** 2) ** 0.5 == pytest.approx(0.0524, abs=5e-5)
    assert surely_better(56, 70, 48, 80) and not surely_better(48, 80, 56, 70)
    assert surely_better(2, 2, 0, 2) and not surely_better(1, 1, 0, 1)


def test_the_command_writes_both_files_and_says_how_much_is_in_them(tmp_path: Path, here: Cli) -> None:
    done = here("export", str(HOUSEHOLD), "best", "--best-turns")
    assert done.returncode == 0, done.stderr
    pairs = (tmp_path / "best" / "pairs.jsonl").read_text().splitlines()
    assert f"pairs.jsonl ({len(pairs)} pairs)" in done.stdout and len(pairs) > 10
    assert here("export", str(HOUSEHOLD), "--best-turns").returncode == 2
    assert here("export", str(HOUSEHOLD), "x", "--best-turns", "--adapters").returncode == 2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A tiny model and a tokenizer whose template knows tools, and the best turns of the example."""
    for package in ("trl", "datasets"):
        pytest.importorskip(package, reason="needs TRL in an environment of its own: make test-hosts ONLY=trl")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<pad>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(specials + alphabet)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] or '' }}"
        "{% for c in m['tool_calls'] or [] %}[{{ c['function']['name'] }} {{ c['function']['arguments'] | tojson }}]{% endfor %}</s>"
        "{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
    )
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(fast), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
        )
    )
    folder = tmp_path_factory.mktemp("best")
    logs = read_logs([HOUSEHOLD], keep_attempts=True)
    write_best_turns(folder, logs.trajectories, logs.attempts)
    model.save_pretrained(folder / "model")
    return str(folder / "model"), fast, folder


def arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "out"), "max_steps": 3, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True,
        "learning_rate": 1e-2, "save_strategy": "no", "logging_steps": 1, "bf16": False, "disable_tqdm": True,
    }  # fmt: skip


def test_trls_dpo_trainer_learns_from_the_pairs(tiny: tuple[Any, Any, Path]) -> None:
    model, tokenizer, folder = tiny
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer

    pairs = load_dataset("json", data_files=str(folder / "pairs.jsonl"), split="train", cache_dir=str(folder / "cache"))
    trainer = DPOTrainer(model, args=DPOConfig(**arguments(folder), max_length=4096), train_dataset=pairs, processing_class=tokenizer)
    row = trainer.train_dataset[0]
    assert '[clean {"object"' in tokenizer.decode(row["chosen_ids"]) and "[go " in tokenizer.decode(row["rejected_ids"])
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.6931, abs=1e-3)  # log 2 before the first step


def test_trls_sft_trainer_learns_from_the_examples_and_only_from_the_completions(tiny: tuple[Any, Any, Path]) -> None:
    model, tokenizer, folder = tiny
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    examples = load_dataset("json", data_files=str(folder / "examples.jsonl"), split="train[:8]", cache_dir=str(folder / "cache"))
    trainer = SFTTrainer(model, args=SFTConfig(**arguments(folder), max_length=4096), train_dataset=examples, processing_class=tokenizer)
    row = trainer.data_collator([trainer.train_dataset[0]])
    learned = tokenizer.decode([token for token in row["labels"][0].tolist() if token != -100])
    assert learned.startswith("[go {") and "household" not in learned
    trainer.train()
    assert trainer.state.log_history[0]["loss"] > 0
