"""The figures of docs/performance.md and docs/learner.md are those of the files that they name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from turnwise.engines.native.hopper_attention import ALWAYS, LEAST, UNEVEN, pays

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def measured(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))


def cells(text: str, first: str) -> list[str]:
    """The cells of the only row of a table that begins with this cell."""
    found = re.findall(rf"^\| (?:\*\*)?{re.escape(first)}(?:\*\*)? \|(.*)\|$", text, re.MULTILINE)
    assert len(found) == 1, (first, len(found))
    return [cell.strip().strip("*") for cell in found[0].split("|")]


PHASES = {"rollout": "rollout", "old log-probs": "old_logprobs", "reference log-probs": "reference", "update": "update"}


def test_where_the_time_goes() -> None:
    text = page("performance").split("### Sampling")[0]
    runs = [measured(f"iteration-{context}-now") for context in ("window", "full")]
    for words, name in {**PHASES, "an iteration": "total"}.items():
        expected: list[str] = []
        for run in runs:
            took, floor = run["seconds"][name], run["floor_seconds"][name]
            expected += [f"{took:.1f}", f"{floor:.1f}", f"{floor / took:.0%}".replace("%", " %")] if floor else [f"{took:.1f}", "0", ""]
        assert cells(text, words)[:6] == expected, words
    between = cells(text, "credit, packing")
    assert [between[0], between[3]] == [f"{run['seconds']['credit'] + run['seconds']['pack']:.1f}" for run in runs]


def test_the_same_iteration_on_the_page_of_the_learner() -> None:
    text = page("learner").split("## A whole iteration")[1]
    for words, name in {"rollout": "rollout", "reference log-probs": "reference", "update": "update", "total": "total"}.items():
        for cell, context in zip(cells(text, words), ("window", "full"), strict=True):
            run = measured(f"iteration-{context}-now")
            took, floor = run["seconds"][name], run["floor_seconds"][name]
            assert cell == f"{took:.1f} ({floor / took:.0%})".replace("%", " %"), words


def test_an_update_alone() -> None:
    text, run = page("learner"), measured("learner-1.5b-now")
    for words, one in zip(("164 of 800 tokens (window)", "16 of 8,500 tokens (full)"), run["compared"], strict=True):
        expected = [
            text
            for part in (one["packed"], one["scoring_alone"])
            for text in (f"{part['tokens_per_second']:,}", f"{part['share_of_ceiling']:.0%}".replace("%", " %"))
        ]
        assert cells(text, words) == [*expected, f"{one['packed']['peak_gb']:.1f}"]
        for part in (one["packed"], one["scoring_alone"]):
            assert part["tflops"] / part["share_of_ceiling"] == pytest.approx(801, abs=1)
    assert "801 TFLOP/s" in text


def test_models_inside_a_limit() -> None:
    text = page("performance")
    names = {"0.5b": "0.5B, all weights", "1.5b": "1.5B, all weights", "7b-lora": "7B, adapters"}
    for case in measured("memory"):
        keys = ("predicted_peak_gb", "measured_total_gb", "predicted_in_use_gb", "measured_peak_gb")
        expected = [str(case["limit_gb"]), *(f"{case[key]:.1f}" for key in keys)]
        expected += [f"{case['seconds_per_iteration']:.2f}", f"{case['tokens_per_s']:,.0f}"]
        assert cells(text, names.get(case["case"], "7B, adapters, base in 4 bits")) == expected
        assert case["within_the_limit"] and case["retries"] == 0


def test_the_pass_of_the_reference_beside_decode_steps() -> None:
    text, run = page("performance"), measured("overlap")
    batches = run["micro_batches"]
    assert cells(text, "tokens per micro-batch") == [f"{one['tokens']:,}" for one in batches]
    for words, way in (("gain, decode steps first", "decode first"), ("gain, equal priority", "equal")):
        assert [float(cell) for cell in cells(text, words)] == pytest.approx([one[way]["gain_at_best"] for one in batches], abs=0.0051)
    saved = cells(text, "saved in an iteration of 129 s, at most, s")
    assert saved == [f"{max(one[way]['saved_s'] for way in ('decode first', 'equal')):.2f}" for one in batches]


def test_compared_with_other_software() -> None:
    text = page("performance").split("## Compared with other software")[1]
    old, now = [measured("engine_all_tokens"), measured("engine")], [measured("engine_vllm_all_tokens"), measured("engine_vllm")]
    rows = {
        "128 requests, 1,024 + 128 tokens, no truncation": (0, "end_to_end"),
        "the same, top-p 0.95": (1, "end_to_end"),
        "in 16 groups of 8 with one prompt each, no truncation": (0, "groups"),
    }
    for words, (cut, part) in rows.items():
        assert cells(text, words)[:3] == [f"{one[part]['s']:.2f} s" for one in (old[cut], now[cut], now[cut]["vllm"])]
    assert cells(text, "the same, top-p 0.95")[3] == f"{measured('engine_now')['transformers']['s']:.2f} s"
    for lanes in (128, 512):
        for cut, words in enumerate((f"a decode step, {lanes} rows, no truncation", f"the same, {lanes} rows, top-p 0.95")):
            steps = [one[f"decode{lanes}"]["ms_per_step"] for one in (old[cut], now[cut], now[cut]["vllm"])]
            assert cells(text, words)[:3] == [*(f"{value:.2f} ms" for value in steps[:2]), f"{steps[2]:.1f} ms"]
    before = measured("engine_steps")["whole"]["before"]["128 × (1,024 + 128)"]
    assert f"; {before:.2f} s before all changes" in page("performance")


def test_the_engine_compared_with_vllm() -> None:
    text, runs = page("engines").split("**Compared with vLLM 0.26**")[1], (measured("engine_vllm"), measured("engine_vllm_all_tokens"))
    rows = {
        "128 requests, 1,024 + 128 tokens": "end_to_end",
        "in 16 groups of 8 with one prompt each": "groups",
        "a decode step, 128 rows": "decode128",
        "a decode step, 512 rows": "decode512",
    }
    for words, part in rows.items():
        values = [one[part] for run in runs for one in (run, run["vllm"])]
        assert cells(text, words) == [f"{one['s']:.2f} s" if "s" in one else f"{one['ms_per_step']:.1f} ms" for one in values]


def test_the_engine_by_shape() -> None:
    text, run = page("engines").split("**Compared with vLLM 0.26**")[0], measured("engine_now")
    rates = {
        "decode, 128 rows at 1,152 tokens": ("decode128", "share_of_floor"),
        "decode, 512 rows at 1,152 tokens": ("decode512", "share_of_floor"),
        "prefill, 128 × 1,024": ("prefill", "share_of_matmul_ceiling"),
    }
    for words, (part, share) in rates.items():
        rate = float(f"{run[part]['tokens_per_s']:.3g}")
        expected = f"{rate:,.0f} tok/s ({run[part][share]:.0%}".replace("%", " %")
        assert cells(text, words)[0].startswith(expected)
    for words, part in (
        ("128 requests, 1,024 + 128 tokens", "end_to_end"),
        ("the same in 16 groups of 8 with one prompt each", "groups"),
        ("transformers' generate, 128 × (1,024 + 128)", "transformers"),
    ):
        assert cells(text, words)[0] == f"{run[part]['s']:.2f} s"


def test_sampling_now_and_before() -> None:
    text = page("performance").split("### Sampling")[1]
    names = "engine_stream_all_tokens", "engine_all_tokens", "engine_stream", "engine"
    every, before, cut, cut_before = map(measured, names)
    for words, part, key in (
        ("a step of 128 rows, ms", "decode128", "ms_per_step"),
        ("a step of 512 rows, ms", "decode512", "ms_per_step"),
        ("128 requests of 1,024 + 128 tokens, s", "end_to_end", "s"),
    ):
        values = [run[part][key] for run in (every, before, cut, cut_before)]
        floor = every[part]["floor_s" if key == "s" else "floor_ms"]
        assert cells(text, words) == [f"{value:.2f}" for value in (*values, floor)]
    assert f"on a machine of\n{cut['matmul_flop_per_s'] / 1e12:.0f} · 10¹² operations/s; `python benchmarks/engine.py --parts" in text
    second = measured("engine_stream_second"), measured("engine_stream_second_all_tokens")
    rate, steps = second[0]["matmul_flop_per_s"] / 1e12, [run["decode512"]["ms_per_step"] for run in second]
    words = f"of {rate:.0f} · 10¹² operations/s, steps of 512 rows took {steps[1]:.2f} ms and, with top-p, {steps[0]:.2f} ms"
    assert words in " ".join(text.split())
    middle = [f"{median(run['decode512']['runs_ms']):.2f}" for run in (every, cut, second[1], second[0])]
    assert f"medians are {middle[0]} ms, and {middle[1]} ms with top-p" in " ".join(text.split())
    assert f"(medians {middle[2]} and {middle[3]})" in " ".join(text.split())
    other = [measured(name)["decode512"]["ms_per_step"] for name in ("engine_vllm", "engine_vllm_all_tokens")]
    assert f"gave {other[0]:.2f} ms with top-p 0.95 and {other[1]:.2f} ms without truncation on a machine of" in " ".join(text.split())


def test_what_attention_in_cuda_gave() -> None:
    text, run = page("performance"), measured("engine_tuning_attention")
    ways, here = ("attention in Triton", "attention in CUDA"), run["first machine"]
    shown = {name: [f"{case[way]['ms']:.2f}" for way in ways] for name, case in here.items()}
    assert cells(text, "attention in CUDA, rows of 1,152 tokens")[:3] == ["512", *shown["512 at 1152"]]
    assert cells(text, "attention in CUDA, rows of 288 to 2,016 tokens")[:3] == ["128", *shown["128 ragged"]]
    assert f"| | 512 | {' | '.join(shown['512 ragged'])} | |" in text
    table = re.findall(r"^\| (\d+) \| (1,152.*|288 to 2,016|941, but every 16th 4,320) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert len(table) == 10
    for rows, tokens, *times in table:
        kind = " at 1152" if tokens.startswith("1,152") else " ragged" if tokens.startswith("288") else ", few long"
        assert shown[rows + kind] == times
        positions = np.full(int(rows), 1151) if kind == " at 1152" else np.where(np.arange(int(rows)) % 16, 940, 4319)
        used = "Triton is used" not in tokens
        assert used == pays(positions, 2), "the rule of the engine"
        assert used == (float(times[1]) < float(times[0]))
        assert here[rows + kind]["now"]["ms"] == pytest.approx(here[rows + kind][ways[used]]["ms"], rel=5e-3), "as the engine chose there"
    words, large = " ".join(text.split()), run["7b, second machine"]["128 ragged"]
    assert f"128 uneven rows take {large[ways[1]]['ms']:.2f} instead of {large[ways[0]]['ms']:.2f} ms" in words
    rule = f"from {ALWAYS} rows × key heads on, and from {LEAST} on if the longest row is more than {UNEVEN} times as long as the mean"
    assert run["shape"] == "1.5b" and rule in words and rule in " ".join(page("engines").split())


def test_what_the_kernel_for_weights_of_four_bits_gives() -> None:
    text, steps, layer = page("performance"), measured("engine_tuning_packed"), measured("packed_products")["layer"]
    text = text.split("What the kernel gives, on an H200")[1].split("So with eight rows")[0]
    for rows in (2, 4, 8, 16, 32, 64):
        step = steps.get(f"{rows} at 768")
        times = [f"{step[way]['ms']:.2f}" for way in ("bitsandbytes multiplies", "now")] if step else ["", ""]
        assert cells(text, str(rows)) == [*times, *(f"{layer[str(rows)][way]:.0f}" for way in ("library", "packed", "bfloat16"))]
    few, many = steps["8 at 768"], steps["64 at 768"]
    pairs = [[f"{case[way]['ms']:.1f}" for way in ("now", "bitsandbytes multiplies")] for case in (few, many)]
    words = f"takes {pairs[0][0]} instead of {pairs[0][1]} ms with 8 rows and {pairs[1][0]} instead of {pairs[1][1]} ms with 64"
    assert words in " ".join(page("engines").split())


def test_what_a_step_spends() -> None:
    run, text = measured("engine_energy"), page("performance").split("They also run at")[1].split("Half of the energy")[0]
    kernels, steps = run["kernels"], {name: [f"{one['joule']:.2f}" for one in found] for name, found in run["steps"].items()}
    first, second = (" and ".join(steps[name]) for name in ("now", "attention in Triton"))
    assert f"spent {first} J in two rounds, and with attention in Triton {second} J" in " ".join(text.split())
    spent = {name: found[0]["joule"] for name, found in kernels.items()}
    rows = {
        "attention": spent["attention"], "attention in Triton": spent["attention in Triton"],
        "only reading the same pages": spent["the same pages, only read"], "gated products": spent["gate"], "*down*": spent["down"],
        "*queries, keys, values* and *out*": spent["qkv"] + spent["out"], "norms": spent["norm"],
    }  # fmt: skip
    assert {words: cells(text, words)[0] for words in rows} == {words: f"{joules:.2f}" for words, joules in rows.items()}


def test_what_the_draws_gave() -> None:
    text = page("performance")
    product, nucleus, inside = (measured(f"engine_steps_{name}")["decode"] for name in ("product", "nucleus", "truncated"))
    for words, run, ways in (
        ("an output layer that draws by itself", product, ("1.0, no product", "1.0, now")),
        ("top-p in one pass", nucleus, ("0.95, now", "0.95, nucleus")),
        ("top-p inside the output layer", inside, ("0.95, no product", "0.95, now")),
    ):
        small, large = ([f"{run[f'{rows} rows, top-p {way}']:.2f}" for way in ways] for rows in (128, 512))
        assert cells(text, words)[:3] == ["128", *small]
        assert f"| | 512 | {large[0]} | {large[1]} | |" in text


def test_top_p_inside_the_output_layer() -> None:
    text, run = " ".join(page("performance").split()), measured("engine_truncated")
    small, large, alone = (run[part]["ms_per_step"] for part in ("decode128", "decode512", "decode512 in a separate process"))
    assert (
        f"gave {small:.2f} and {large:.2f} ms and {run['end_to_end']['s']:.2f} s with top-p 0.95, and {alone:.2f} ms for 512 rows" in text
    )
    assert f"one machine of {run['matmul_flop_per_s'] / 1e12:.0f} · 10¹² operations/s" in text


def test_rollouts_alone() -> None:
    text = " ".join(page("performance").split())
    window, full = (measured(f"iteration-rollout-{context}-now")["seconds"]["rollout"] for context in ("window", "full"))
    assert f"took {window:.1f} s in window and {full:.1f} s in full context" in text
    other = [measured(f"iteration-rollout-{context}-now")["vllm"]["seconds"] for context in ("window", "full")]
    assert f"vLLM 0.26 took {other[0]:.1f} and {other[1]:.1f} s in the same runs" in text
    before = [measured(f"iteration-{context}")["seconds"]["rollout"] for context in ("window", "full")]
    for context, *values in zip(("window", "full"), before, (window, full), other, strict=True):
        assert cells(page("performance"), f"rollouts of 128 × 50 turns, {context} context")[:3] == [f"{value:.1f} s" for value in values]


def test_in_short() -> None:
    text = " ".join(page("performance").split("## Where the time goes")[0].split())
    window, full = (measured(f"iteration-{context}-now") for context in ("window", "full"))
    share = [round(100 * run["floor_seconds"]["total"] / run["seconds"]["total"]) for run in (window, full)]
    took = [round(run["seconds"]["total"]) for run in (window, full)]
    assert f"takes {took[0]} s in window and {took[1]} s in full context, {share[0]} and {share[1]} % of what the GPU allows" in text
    rollouts = [measured(f"iteration-rollout-{context}-now") for context in ("window", "full")]
    times = [run["vllm"]["seconds"] / run["seconds"]["rollout"] for run in rollouts]
    run = measured("engine_vllm_all_tokens")
    steps = [run["vllm"][part]["ms_per_step"] / run[part]["ms_per_step"] for part in ("decode128", "decode512")]
    assert f"rollouts are {times[0]:.1f} and {times[1]:.1f} times as fast as with vLLM 0.26" in text
    assert f"decode steps of 128 and 512 rows {steps[0]:.1f} and {steps[1]:.1f} times" in text


def test_whole_games_of_a_7b_model_inside_a_limit() -> None:
    text = " ".join(page("performance").split())
    for case, words in zip(
        measured("memory_games_7b"), ("it took {} GB in all and {} s, {} tokens/s", "it took {} GB and {} s, {} tokens/s"), strict=True
    ):
        found = f"{case['measured_total_gb']:.1f}", f"{case['seconds_per_iteration']:.0f}", f"{case['tokens_per_s']:,.0f}"
        assert words.format(*found) in text and f"In {case['limit_gb']} GB" in text
        assert case["within_the_limit"] and case["retries"] == 0 and case["iterations"] == 1 and case["turns"] == 50


def test_ten_iterations_of_a_7b_model_inside_a_limit() -> None:
    text, (whole, packed) = " ".join(page("performance").split()), measured("memory_games_7b_ten")
    held = f"In 40 GB torch held {whole['measured_held_gb']:.1f} GB, in 24 GB, with the base in 4 bits, {packed['measured_held_gb']:.1f} GB"
    assert held in text and "a run alone takes 0.9 GB" in text
    for case in (whole, packed):
        assert case["finished"] and case["iterations"] == 10 and case["retries"] == 0 and case["turns"] == 10 and case["response"] == 64
        assert case["measured_held_gb"] + 0.9 < case["limit_gb"]
    assert all(f"{case['outside_torch_gb']:.1f}" == "0.9" for case in measured("memory_games_7b"))


def test_how_fast_memory_is_read() -> None:
    text, run = " ".join(page("performance").split()), measured("read_rate")
    small, large = (max(run[f"{size} GB, scattered"].values()) / 1e12 for size in ("0.6", "17"))
    assert f"reads {small:.1f} · 10¹² bytes/s, and {large:.1f} · 10¹² of larger arrays" in text


def test_common_prefixes_caches_in_8_bits_and_rows_of_different_lengths() -> None:
    text, run = " ".join(page("engines").split()), measured("engine_shared")["shared"]
    steps, layers, common = run["ms per step"], run["us of a layer"], "rows, groups of 8, 1,024 + 128"
    large, small = ([steps[f"{rows} {common}, {way}"] for way in ("cascade", "as it is")] for rows in (512, 128))
    assert (
        f"a step takes {large[0]:.2f} instead of {large[1]:.2f} ms. With 128 rows it takes {small[0]:.2f} instead of {small[1]:.2f} ms"
        in text
    )
    small, large = ([steps[f"{rows} rows at 1,152, {way}"] for way in ("8 bits", "as it is")] for rows in (128, 512))
    assert f"takes {small[0]:.2f} instead of {small[1]:.2f} ms, and one of 512 rows {large[0]:.2f} instead of {large[1]:.2f} ms" in text
    plain, packed, relative = (layers[f"512 lanes at 1152, cache: {kind}"] for kind in ("model", "8bit", "8bit, relative"))
    assert f"({packed:.0f} instead of {plain:.0f} µs per layer with 512 rows), but slower with one ({relative:.0f} µs)" in text
    ragged = measured("engine_tuning_ragged")
    long, short = (
        [ragged[case][way]["ms"] for way in ("balance, nothing asked for ahead", "now")] for case in ("128 ragged, long", "128 ragged")
    )
    assert (
        f"take {long[0]:.2f} instead of {long[1]:.2f} ms at 2,600 tokens on average, and {short[0]:.2f} instead of {short[1]:.2f} ms"
        in text
    )


def test_the_gap_between_engine_and_learner_in_a_training_run() -> None:
    lines = (ROOT / "docs/results/alfworld/gigpo-0/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "learner/engine_gap" in row]
    mean, squares = (sum(row[f"learner/{name}"] for row in rows) / len(rows) for name in ("engine_gap", "engine_kl_k3"))
    most = max(row["learner/engine_gap_max"] for row in rows)
    text = " ".join(page("learner").split())
    assert f"it is {mean:.3f} on average and {most:.2f} at most, and the root of its mean square is {(2 * squares) ** 0.5:.3f}" in text


def test_moments_in_8_bits_on_a_quadratic() -> None:
    text, run = page("performance"), measured("moments")["quadratic"]
    for words, name in (("nothing", "1"), ("a factor of 100", "100"), ("a factor of 10,000", "10,000")):
        row = [one for way, one in run[f"a factor of {name}"].items() if way != "float32"]
        assert len(row) == 3
        shown = ["diverges" if one["apart"] > 1 else f"{100 * one['apart']:.1f} %, {one['from_the_best']:.1f}" for one in row]
        assert cells(text, words) == shown


def test_moments_in_8_bits_in_training() -> None:
    text, run = " ".join(page("performance").split()), measured("moments")["numberline-tiny"]
    ends = {kind: [f"{100 * run[f'{kind}, seed {seed}']['success'][-1]:.0f}" for seed in (500, 501, 502)] for kind in ("float32", "8bit")}
    plain, packed = (f"{', '.join(found[:2])} and {found[2]} %" for found in ends.values())
    assert f"of {plain} with float32 and of {packed} with 8 bits" in text
