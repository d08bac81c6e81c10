"""Exchange: what is written is what is read, whatever the texts; recorded attempts warm a model up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Cli
from hypothesis import given
from hypothesis import strategies as st
from train_cases import start

import turnwise as tw
from turnwise import TurnwiseError
from turnwise.data.images import picture
from turnwise.data.schema import from_rows, to_rows
from turnwise.runs.exchange import export_trajectories
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_trajectories

COUNTER = f"{ROOT / 'tests' / 'support' / 'counter_env.py'}:Counter"


def whole(text: str) -> bool:
    """Two surrogates that make a pair are one character in every file format; a lone one is not."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") == text


texts = st.text(st.characters(), max_size=8).filter(whole)
numbers = st.floats(allow_nan=False, allow_infinity=False)
anchors = st.none() | texts | st.integers(-(2**70), 2**70) | st.binary(max_size=5)
infos = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-9, 9) | texts | st.lists(texts, max_size=2), max_size=2)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
turns = st.builds(
    tw.Turn,
    anchor=anchors,
    reward=numbers,
    valid=st.booleans(),
    observation=texts,
    thought=texts,
    action=texts,
    response=texts,
    prompt_ids=ids,
    response_ids=ids,
    logprobs=st.lists(numbers, max_size=3).map(tuple),
    info=infos,
)


@st.composite
def attempts(draw: st.DrawFn) -> list[tw.Trajectory]:
    labels = st.integers(-(2**62), 2**62) if draw(st.booleans()) else texts
    found = []
    for label in draw(st.lists(labels, max_size=3, unique=True)):
        stop, seed = draw(st.sampled_from(tw.Stop)), draw(st.integers(0, 2**63 - 1))
        own = draw(st.lists(turns, max_size=3))
        found.append(tw.Trajectory(draw(labels), label, draw(texts), own, stop, draw(texts), draw(st.booleans()), seed, draw(anchors)))
    return found


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@given(trajectories=attempts())
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, ending: str, trajectories: list[tw.Trajectory]) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("exchange") / f"x{ending}"
    assert tw.read_trajectories(tw.write_trajectories(path, trajectories, tokens=True)) == trajectories


def test_a_plans_state_keeps_pictures_and_reports_in_plain_json() -> None:
    one, other = (picture(np.full((3, 2, 3), shade, np.uint8)) for shade in (7, 9))
    turns = [
        tw.Turn("a", response_ids=(1, 2), images=(one,), reports={"entropy": (0.5, np.float32(0.25))}, notes={"surprise": 2.0}),
        tw.Turn("b", response_ids=(3,), images=(one, other), learned=False),
    ]
    rows = json.loads(json.dumps(to_rows([tw.Trajectory(0, 0, turns=turns)], tokens=True, reports=True)))
    [back] = from_rows(rows)
    assert [turn.images for turn in back.turns] == [(one,), (one, other)]
    assert np.array_equal(back.turns[1].images[1].pixels, other.pixels)
    assert [list(row["pictures"]) for row in rows] == [[one.name], [other.name]], "each picture once"
    assert back.turns[0].reports == {"entropy": [0.5, 0.25]} and back.turns[0].notes == {"surprise": 2.0}
    assert not back.turns[1].learned


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TurnwiseError, match=r"\.jsonl or \.parquet"):
        tw.read_trajectories(tmp_path / "x.csv")
    with pytest.raises(TurnwiseError, match="no such file"):
        tw.read_trajectories(tmp_path / "x.jsonl")
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    with pytest.raises(TurnwiseError, match=r"row 1.*'trajectory' is missing"):
        tw.read_trajectories(path)
    path.write_text("no json\n")
    with pytest.raises(TurnwiseError, match=r"line 1: not JSON"):
        tw.read_trajectories(path)
    path.write_bytes(b'{"trajectory": "\xff"}\n')
    with pytest.raises(TurnwiseError, match="not UTF-8"):
        tw.read_trajectories(path)
    rows = to_rows([tw.Trajectory(0, 0, turns=[tw.Turn("a"), tw.Turn("b")])])
    with pytest.raises(TurnwiseError, match=r"row 1.*rows are in order"):
        from_rows(rows[1:])


def test_a_parquet_table_of_something_else_is_named(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for columns in ({"a": [1, 2]}, {"info": [5]}, {"info": ["no json"]}):
        parquet.write_table(pyarrow.table(columns), tmp_path / "other.parquet")
        with pytest.raises(TurnwiseError, match="'info' is missing"):
            tw.read_trajectories(tmp_path / "other.parquet")


def test_a_run_exports_what_it_trained_on_with_credit_and_reads_it_back(tmp_path: Path) -> None:
    run = Run.open(start(tmp_path, iterations=2, **{"eval.every": 1}).folder)
    path, count = export_trajectories(run.folder, tmp_path / "x.jsonl", 2, tokens=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rollouts = run.columns(2)
    assert count == 8 and [row["credit"] for row in rows] == tw.credit.assign("gigpo", rollouts).by_turn(rollouts).tolist()
    assert {"step_return", "episode", "step", "anchor_group", "anchor_size", "iteration", "return"} <= set(rows[0])
    back = tw.read_trajectories(path)
    assert back == stored_trajectories(run, 2, tokens=True)
    again = tw.Rollouts.from_trajectories(back)
    assert (tw.credit.compute("gigpo", again) == tw.credit.compute("gigpo", rollouts)).all()


def test_evaluations_are_exported_and_the_columns_are_those_of_the_page(tmp_path: Path, here: Cli) -> None:
    folder = start(tmp_path, iterations=1).folder
    done = here("trajectories", str(folder), "--evals", "--out", str(tmp_path / "x.jsonl"))
    assert done.returncode == 0 and "(4 trajectories)" in done.stdout, done.stderr
    assert len(tw.read_trajectories(tmp_path / "x.jsonl")) == 4
    with pytest.raises(TurnwiseError, match="no tokens"):
        export_trajectories(folder, tmp_path / "y.jsonl", evals=True, tokens=True)
    path, _ = export_trajectories(folder, tmp_path / "y.jsonl", tokens=True)
    shown = re.findall(r"^\| (`.+?`(?:, `.+?`)*) \|", (ROOT / "docs" / "guides" / "trajectories.md").read_text(), re.MULTILINE)
    names = [name for row in shown for name in re.findall(r"`(.+?)`", row)]
    assert sorted(names) == sorted([*json.loads(path.read_text().splitlines()[0]), "escaped"])


# -- learning from a file -------------------------------------------------------------------------------------------------------------


def recorded(path: Path, action: str, thought: str = "") -> str:
    tasks = list(tw.tasks(COUNTER, "train", n=4))
    own = [tw.Trajectory(n, n, task.id, [tw.Turn("s", action=action, thought=thought)] * 3, success=True) for n, task in enumerate(tasks)]
    return str(tw.write_trajectories(path, own))


def test_a_warm_start_learns_from_recorded_trajectories(tmp_path: Path) -> None:
    changes = {"env.name": COUNTER, "iterations": 0, "agent.prompt": "think", "agent.max_prompt_tokens": 400, "model.tiny.max_length": 512}
    result = start(tmp_path, **changes, **{"sft.file": recorded(tmp_path / "x.jsonl", "add one", "one more"), "env.tasks": 4})
    assert result.metrics[0]["sft/turns"] == 12
    assert result.metrics[0]["sft/tokens"] > 12 * 8  # the thought is learned too
    with pytest.raises(TurnwiseError, match="no trajectory that succeeds"):
        start(tmp_path, **changes, **{"sft.file": recorded(tmp_path / "y.jsonl", "wait")})
    with pytest.raises(TurnwiseError, match="are not training tasks here"):
        start(tmp_path, **changes, **{"sft.file": recorded(tmp_path / "x.jsonl", "add one"), "env.tasks": 2})
