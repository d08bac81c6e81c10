"""A recipe on a cluster: what is refused before anything is loaded, what goes where, and the same weights as in one process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_runs import SEATS, same, trained
from conftest import ROOT, Cli

from turnwise import TurnwiseError
from turnwise.cluster.placement import Demand, Node, crowded, lacking, place
from turnwise.cluster.probe import here as installed_here
from turnwise.cluster.probe import problems
from turnwise.cluster.start import connect, protect_token
from turnwise.collect.games import PLAYER_OFFSET
from turnwise.recipe.schema import Config
from turnwise.recipe.writing import content_hash, to_toml
from turnwise.report.cluster_check import check_command, on_cpus
from turnwise.runs.folder import Run
from turnwise.runs.reading import stored_trajectories
from turnwise.setup import placement as placing
from turnwise.setup.cluster import ActorSpec
from turnwise.setup.placement import Checked, bundles_for, check_cluster
from turnwise.setup.training import build_training

QUICKSTART = ROOT / "recipes" / "quickstart.toml"
STORE = 80 * 2**20  # bytes of shared memory per node


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster of a head and another node, both on this machine."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE})
    made.add_node(num_cpus=3, object_store_memory=STORE)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


# -- what is refused -------------------------------------------------------------------------------------------------------------------


def test_a_recipe_without_a_cluster_keeps_its_hash_and_its_text_reads_back() -> None:
    plain, clustered = Config.load(QUICKSTART), Config.load(QUICKSTART, ["cluster.engines=2", "cluster.staleness=1"])
    assert plain.cluster is None and clustered.cluster is not None and clustered.cluster.engines == 2
    assert content_hash(plain) != content_hash(clustered)
    assert "cluster" not in plain.model_dump(exclude_none=True) and 'cluster = "none"' in to_toml(plain)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["cluster.staleness=9"], "cluster.staleness"),
        (["cluster.engines=0"], "cluster.engines"),
        (["cluster.tensor_parallel=2"], "tensor_parallel=2 needs engine.name=vllm"),
        (["cluster.tensor_parallel=2", "engine.name=vllm"], "takes whole GPUs: set cluster.placement=apart"),
        (["cluster.engines=1", "engine.sleep=true"], "engines of a cluster keep their memory"),
        (["cluster.transfer=ipc"], "cluster.transfer=ipc shares the memory of a GPU"),
        (["cluster.port=7000"], "cluster.port is gone"),
        (["cluster.engine=2"], "Did you mean cluster.engines"),
    ],
)
def test_a_section_that_contradicts_itself_is_refused_when_it_is_read(changes: list[str], words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        Config.load(QUICKSTART, changes)


def test_a_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TurnwiseError, match=r"\[cluster\]"):
        connect()


def test_an_address_that_does_not_answer_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TurnwiseError, match=f"127.0.0.1:{port} does not answer"):
            connect(f"127.0.0.1:{port}")
    with pytest.raises(TurnwiseError, match="host:port"):
        connect("somewhere")


LOCAL = """
import os, sys
from pathlib import Path

os.umask(0)
from turnwise.cluster.start import connect, import_ray, leave

started = connect()
ray = import_ray()
assert ray.get(ray.remote(lambda: 1).remote()) == 1

def family(pid):
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(child)
    yield pid

def sockets(pid):
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(handle)
        except OSError:
            continue
        if name.startswith("socket:["):
            yield name.removeprefix("socket:[").removesuffix("]")

ours = {inode for pid in family(os.getpid()) for inode in sockets(pid)}
rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
print("listening", *sorted({row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in ours}))
token = Path.home() / ".ray" / "auth_token"
print("token", oct(token.stat().st_mode & 0o777), len(token.read_text()), len(list(token.parent.iterdir())))
leave(started)
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads the sockets of Linux")
def test_ray_on_one_machine_listens_to_itself_alone_and_nobody_else_can_read_its_token(tmp_path: Path) -> None:
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", LOCAL], env={**known, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert done.returncode == 0, done.stderr
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert lines["listening"] and set(lines["listening"].split()) <= loopback
    assert lines["token"] == "0o600 64 1"


def test_an_older_token_stays_and_is_hidden_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("an older token")
    token.chmod(0o644)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    protect_token()
    assert token.read_text() == "an older token" and token.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_where_something_else_listens_is_reported_at_once(says: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(says)

        Thread(target=answer, daemon=True).start()
        with pytest.raises(TurnwiseError, match=f"cluster.address=127.0.0.1:{port}: what listens there is not the head node"):
            connect(f"127.0.0.1:{port}")


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Joins a cluster of which Ray's own part is the given function."""

    def join(init: Callable[[], None]) -> None:
        ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **options: init())
        monkeypatch.setattr("turnwise.cluster.start.import_ray", lambda: ray)
        monkeypatch.setattr("turnwise.cluster.start.check_address", lambda address: None)
        connect("10.0.0.1:6379")

    return join


def test_a_cluster_that_asks_for_a_token_is_one_message(joining: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        os.write(2, b"gcs_client.cc:210: Failed to get cluster ID: Unauthenticated: RPC error\n" * 20)
        raise ConnectionError("Failed to connect to Ray cluster")

    with pytest.raises(TurnwiseError, match=r"asks for a token\. Set RAY_AUTH_MODE=token"):
        joining(refused)
    assert capfd.readouterr().err == ""


def test_a_signal_to_end_still_saves_the_run_after_ray_was_joined(joining: Any) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        joining(lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_words_of_a_tiny_model_are_on_the_disk_only_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spec = ActorSpec(Config.load(QUICKSTART), "", (), {}, {"tokenizer.json": b"words"})

    def read(config: Config, words: Path | None = None) -> bytes | None:
        return None if words is None else (words / "tokenizer.json").read_bytes()

    monkeypatch.setattr("turnwise.setup.cluster.load_model", read)
    seen: list[Any] = [spec.load(), *tmp_path.iterdir(), replace(spec, vocabulary={}).load()]
    assert seen == [b"words", None]


def test_a_program_is_refused_before_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.setup.cluster.connect", lambda address: pytest.fail("Ray was started"))
    config = Config.load(ROOT / "recipes" / "own-env.toml", ["env.name=program", "env.options.command=true", "cluster.engines=1"])
    with pytest.raises(TurnwiseError, match="'program' is played in one process"):
        build_training(config)


@pytest.mark.parametrize("section", [[], ["cluster.engines=2"]])
def test_check_refuses_a_program_with_one_message_before_ray_is_started(
    here: Cli, monkeypatch: pytest.MonkeyPatch, section: list[str]
) -> None:
    monkeypatch.setattr("turnwise.setup.placement.connect", lambda address: pytest.fail("Ray was started"))
    options = ["env.name=program", "env.options.command=true", *section]
    told = here("cluster", "check", str(ROOT / "recipes" / "own-env.toml"), *options)
    assert told.returncode == 2 and not told.stdout
    assert " ".join(told.stderr.split()) == (
        "error: cluster: environment 'program' is played in one process, because it is a program and each of its attempts becomes several "
        "trajectories. Train without the [cluster] section (cluster=none)"
    )


# -- what goes where -------------------------------------------------------------------------------------------------------------------

HERE, THERE = Node("a", "10.0.0.1", 8, 4, here=True), Node("b", "10.0.0.2", 8, 4)


def bundles(demand: Demand, *known: Node) -> dict[str, tuple[str, float]]:
    return {bundle.part: (bundle.node.id, bundle.gpus) for bundle in place(known, demand)}


def test_engines_are_spread_over_nodes_and_learners_stay_together() -> None:
    assert bundles(Demand(4), THERE, HERE) == {"learner 0": ("a", 0.0)} | {f"engine {k}": ("ab"[k % 2], 0.0) for k in range(4)}
    apart = bundles(Demand(4, 2, gpu=True, colocated=False), HERE, THERE)
    assert [apart[f"learner {k}"] for k in range(2)] == [("a", 1.0), ("a", 1.0)]
    assert sorted(node for part, (node, _) in apart.items() if part.startswith("engine")) == ["a", "a", "b", "b"]


def test_colocated_parts_share_gpus_and_tensor_parallel_engines_take_several() -> None:
    shared = bundles(Demand(8, 8, gpu=True), HERE, THERE)
    assert sum(gpus for _, gpus in shared.values()) == pytest.approx(8)
    assert {part.split()[0]: gpus for part, (_, gpus) in shared.items()} == {"engine": 0.6, "learner": 0.4}, "two engines never share one"
    wide = bundles(Demand(1, 1, gpu=True, tensor_parallel=2, colocated=False), HERE)
    assert wide["engine 0"] == ("a", 2.0)


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (Demand(33), "33 engines take a quarter of a core each at least, and this machine has 8 cores. Lower cluster.engines, or"),
        (Demand(20, 20), "20 engines and 20 learners take .* Lower cluster.engines or cluster.learners, or"),
        (Demand(5, gpu=True), "need 5 GPUs shared with the learners, 5 in all, and this machine has 4"),
        (Demand(4, 1, gpu=True, colocated=False), "need 4 GPUs and 1 for learners, 5 in all"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(demand: Demand, words: str) -> None:
    with pytest.raises(TurnwiseError, match=words):
        place([HERE], demand)


def test_processes_share_cores_if_there_are_too_few_and_that_is_said() -> None:
    two = Node("a", "10.0.0.1", 2, here=True)
    for learners, engines, share in ((1, 2, 1.0), (2, 1, 0.5), (2, 2, 0.5), (2, 4, 0.33), (4, 4, 0.25)):
        found = place([two], Demand(engines, learners))
        assert {bundle.cpus for bundle in found if bundle.cpus} == {share} and sum(bundle.cpus for bundle in found) <= 2
        assert crowded(found).endswith(f"up to {round(1 / share)} on one: slower than with a core each") == (share < 1)
    spread = [bundle.node.id for bundle in place([two, Node("b", "10.0.0.2", 1)], Demand(6))][1:]
    assert (spread.count("a"), spread.count("b")) == (4, 2)


def test_what_other_programs_use_is_waited_for_and_then_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([{}, {"CPU": 1.0}, {"CPU": 2.0}])
    monkeypatch.setattr("turnwise.cluster.placement.import_ray", lambda: SimpleNamespace(available_resources=lambda: next(free)))
    monkeypatch.setattr("turnwise.cluster.placement.LOOKS", 0.0)
    bundles = place([HERE], Demand(2))
    assert lacking(bundles) == ""
    free = iter([{"CPU": 1.0}])
    assert "2 cores are needed and 1 are free: other programs use the rest" in lacking(bundles, patience=-1.0)


def test_an_engine_is_never_split_over_nodes() -> None:
    with pytest.raises(TurnwiseError, match="engine 0 needs 1 cores and 6 GPUs on one node"):
        place([HERE, THERE], Demand(1, 1, gpu=True, tensor_parallel=6, colocated=False))


def test_missing_packages_and_other_versions_are_named_with_their_node() -> None:
    own = installed_here()
    found = {"a": {**own, "vllm": "0.25.1"}, "b": {**own, "turnwise": "", "torch": "2.0"}, "c": {"error": "no answer"}}
    known = [HERE, THERE, Node("c", "10.0.0.3", 8)]
    assert problems(known, found, ["turnwise", "torch"])[:2] == [
        "node 10.0.0.2 lacks the package turnwise: install it as on this machine",
        f"node 10.0.0.2 has torch 2.0, and this machine {own['torch']}: install the same version",
    ]
    assert problems(known, found, ["vllm"])[0] == "node 10.0.0.1 has vllm 0.25.1; 0.26 is needed"
    assert problems(known, found, [])[-1] == "node 10.0.0.3 does not answer: no answer"


def test_a_node_that_has_just_died_is_left_out_as_soon_as_ray_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.load(QUICKSTART, ["cluster.engines=2", "device=cpu"])
    own, head, dead = installed_here(), Node("a", "10.0.0.1", 1, here=True), Node("b", "10.0.0.2", 8)
    alive = Node("c", "10.0.0.3", 8)
    known = iter([[head, dead, alive], [head, dead, alive], [head, alive], [head, alive]])
    monkeypatch.setattr(placing, "nodes", lambda: next(known))
    monkeypatch.setattr(placing, "lacking", lambda bundles: "")
    monkeypatch.setattr(placing, "probe", lambda asked: {node.id: {"error": "gone"} if node is dead else own for node in asked})
    monkeypatch.setattr(placing, "LOOKS", 0.0)
    assert {bundle.node.id for bundle in bundles_for(config)} <= {"a", "c"} and next(known, None) is None
    monkeypatch.setattr(placing, "nodes", lambda: [head, dead, alive])
    monkeypatch.setattr(placing, "LEAVES", 0.0)
    with pytest.raises(TurnwiseError, match=r"node 10\.0\.0\.2 does not answer: gone"):
        bundles_for(config)


def test_check_shows_nodes_and_seats_and_fails_for_what_cannot_be_placed(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = (check_cluster(Config.load(QUICKSTART, [f"cluster.engines={engines}"])) for engines in (2, 17))
    assert len(good.nodes) == 2 and not good.problems and [bundle.part for bundle in good.bundles] == ["learner 0", "engine 0", "engine 1"]
    assert all(has["turnwise"] and has["torch"] for has in good.versions.values())
    assert not bad.bundles and "17 engines take a quarter of a core each at least, and the 2 nodes have 4 cores" in bad.problems[0]
    monkeypatch.setattr("turnwise.report.cluster_check.check_cluster", lambda config: good if config.cluster.engines == 2 else bad)
    assert check_command(Config.load(QUICKSTART, ["cluster.engines=2"])) == 0
    assert check_command(Config.load(QUICKSTART, ["cluster.engines=17"])) == 1


def test_check_says_that_a_recipe_for_any_device_gets_no_gpu() -> None:
    here, other = Node("a", "10.0.0.1", 8, here=True), Node("b", "10.0.0.2", 8, 8)
    bundles = place([here, other], Demand(2))
    assert on_cpus(Checked([here], {}, bundles, []), "auto").endswith("all parts would compute on CPUs")
    assert "although other nodes have GPUs: start the command on one of those" in on_cpus(Checked([here, other], {}, bundles, []), "auto")
    on_gpus = place([other], Demand(2, gpu=True))
    assert not any(on_cpus(*of) for of in ((Checked([here], {}, bundles, []), "cpu"), (Checked([other], {}, on_gpus, []), "auto")))


# -- the same weights --------------------------------------------------------------------------------------------------------------------


def test_one_engine_gives_the_weights_of_one_process_for_both_players_of_a_game(nodes: Any, tmp_path: Path) -> None:
    plain, clustered = (trained(tmp_path, name, **SEATS, **more) for name, more in (("plain", {}), ("one", {"cluster.engines": 1})))
    assert same(plain, clustered) and not same(trained(tmp_path, "untrained", iterations=0, **SEATS), plain)
    found = stored_trajectories(Run(next(tmp_path.glob("one*"))), 2)
    assert all({turn.info["seat"] for turn in one.turns} == {int(one.id) // PLAYER_OFFSET} for one in found)
    assert Counter(int(one.id) // PLAYER_OFFSET for one in found) == {0: 3 * 4, 1: 3 * 4}
