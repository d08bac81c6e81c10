"""Tries every game of textarena and writes what was found into the environment's table.

    python benchmarks/textarena_games.py            # with the package installed; on Python 3.12 too: five games need it
    python benchmarks/textarena_games.py --check    # compares with the table and writes nothing

Every family of games is made, reset and played with random moves. The table says which ones run, with how many players, how long they take,
which attributes of the package's objects belong to the state, and what is missing for the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import time
from typing import Any

from turnwise.util.files import write_text_atomically
from turnwise_envs.textarena.match import COUNTERS, Match, canonical
from turnwise_envs.textarena.moves import TALK
from turnwise_envs.textarena.table import TABLE, Game

MOST_MOVES, SEEDS = 200, (1, 2)
AT_LEAST = {"QuantumTicTacToe": 2, "SpiteAndMalice": 2, "PublicGoodsGame": 3, "MarketEntryGame": 3}
AT_MOST = {"QuantumTicTacToe": 2, "SpiteAndMalice": 2}
WORDS = "a word list: python -c \"import nltk; nltk.download('words'); nltk.download('averaged_perceptron_tagger_eng')\""
WITH_WORDS = dict.fromkeys(("Hangman", "WordLadder", "Wordle", "WordSearch"), 1) | {"Codenames": 4}  # the others: two
NEWER = "Python 3.12"
KEY = "a key of a service that judges or answers (OPENROUTER_API_KEY)"


def families() -> dict[str, list[str]]:
    """The ids of the package by family, without those that only show things differently."""
    from textarena.envs.registration import ENV_REGISTRY

    found: dict[str, list[str]] = {}
    for name, spec in ENV_REGISTRY.items():
        if not name.endswith(("-raw", "-train")):
            found.setdefault(spec.entry_point.split(".")[2], []).append(name)
    return {family: sorted(ids, key=lambda one: (not one.endswith("-v0"), ids.index(one))) for family, ids in found.items()}


def talks(name: str) -> bool:
    """Whether players read each other's words: the package's own variants for training show them, or only boards and messages."""
    from textarena.envs.registration import ENV_REGISTRY

    wrappers = ENV_REGISTRY[f"{name}-train" if f"{name}-train" in ENV_REGISTRY else name].default_wrappers or []
    return any(wrapper.__name__ == "LLMObservationWrapper" for wrapper in wrappers)


def why_not(error: BaseException) -> str:
    """What has to be installed, or why nothing helps."""
    said = f"{type(error).__name__}: {error}".strip().split("\n")[0]
    if isinstance(error, LookupError):
        return WORDS
    if "API key" in said:
        return KEY
    if isinstance(error, SyntaxError):
        return NEWER if sys.version_info < (3, 12) else "a repair of the game, which has a syntax error"
    if "No module named 'gym'" in said:
        return "the old package gym"
    if isinstance(error, FileNotFoundError) or "No module named 'textarena" in said:
        return "files that are not part of the package"
    return said[:160]


def made(name: str, players: int) -> Any:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    env = textarena.make(f"{name}-raw" if f"{name}-raw" in ENV_REGISTRY else name)
    env.reset(num_players=players, seed=1)
    env.get_observation()
    return env


def players_of(family: str, name: str) -> tuple[tuple[int, ...], str]:
    """The numbers of players that a game takes, or why there are none."""
    found, last = [], ""
    for players in range(AT_LEAST.get(family, 1), AT_MOST.get(family, 8) + 1):
        try:
            made(name, players)
            found.append(players)
        except BaseException as error:
            last = last or why_not(error)
    return tuple(found[:1] if found[:1] == [1] else found), last


def attributes_of(game: Game) -> tuple[str, ...]:
    """Attributes of the package's object that change during play, or with the seed, and are not part of what the game calls its state."""
    seen: dict[str, set[str]] = {}
    for seed in SEEDS:
        match, chance = Match(game, game.ids[0], game.players[0], seed), random.Random(f"tour {seed}")
        for _ in range(25):
            for name, value in vars(match.env).items():
                if name not in ("state", "env_id", "entry_point"):
                    seen.setdefault(name, set()).add(repr(canonical(value))[:5000])
            match.look()
            match.play(chance.choice(match.moves or TALK))
            if match.over:
                break
    left_out = COUNTERS | {"current_player", "initial_board", "initial_move_pos"}
    changed = (name for name, values in seen.items() if len(values) > 1)
    return tuple(sorted(name for name in changed if name not in left_out and "history" not in name))


def tried(game: Game) -> dict[str, Any]:
    """Random matches: how long they are, how many listed moves the game did not take, and how many came to an end."""
    found = {"turns": 0, "moves": 0, "refused": 0, "ended": 0, "broken": "", "listed": True, "most": 0}
    for seed in SEEDS:
        match, chance, turns = Match(game, game.ids[0], game.players[0], seed), random.Random(f"tour {seed}"), dict.fromkeys(range(20), 0)
        for _ in range(MOST_MOVES):
            match.look()
            found["listed"] &= bool(match.moves)
            found["most"] = max(found["most"], len(match.moves))
            turns[match.mover] += 1
            found["refused"] += not match.play(chance.choice(match.moves or TALK))
            found["moves"] += 1
            if match.over:
                break
        found["ended"] += match.over
        found["broken"] = found["broken"] or match.broken
        found["turns"] = max(found["turns"], *turns.values())
    return found


def look_at(family: str, ids: list[str], old: dict[str, Any] | None, say: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"ids": ids, "players": [], "talk": talks(ids[0])}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        players, missing = players_of(family, ids[0])
    if not players:
        say(f"{family:26} does not run: {missing}")
        if old is not None and missing == NEWER:
            return old  # found on another version of Python
        if missing == WORDS:
            fields["players"] = [WITH_WORDS.get(family, 2)]
        return fields | {"runs": missing in (NEWER, WORDS), "needs": missing}
    game = Game(family, tuple(ids), players, fields["talk"])
    try:
        attributes = attributes_of(game)
        report = tried(Game(family, tuple(ids), players, fields["talk"], attributes))
    except Exception as error:
        say(f"{family:26} breaks: {why_not(error)}")
        return fields | {"runs": False, "needs": f"a repair of the game: {why_not(error)}"}
    say(f"{family:26} players {players} {report} {attributes}")
    if report["broken"]:
        return fields | {"players": list(players), "runs": False, "needs": f"a repair of the game, which raises {report['broken']}"}
    turns = min(max(10, -(-report["turns"] * 3 // 20) * 10), 200)
    needs = NEWER if (old or {}).get("needs") == NEWER else ""
    return fields | {"players": list(players), "attributes": list(attributes), "turns": turns} | ({"needs": needs} if needs else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the table, and write nothing")
    parser.add_argument("--only", nargs="*", default=[], help="these families only; the others stay as they are")
    own = parser.parse_args()
    import textarena

    old = json.loads(TABLE.read_text("utf-8"))["games"] if TABLE.exists() else {}
    found = {}
    for family, ids in families().items():
        begun = time.monotonic()
        again = not own.only or family in own.only or family not in old
        found[family] = look_at(family, ids, old.get(family), lambda line: print(line, flush=True)) if again else old[family]
        print(f"{time.monotonic() - begun:.1f} s", flush=True)
    if own.check:
        differ = [name for name, fields in found.items() if fields != old.get(name)]
        print("as in the table" if not differ else f"differ: {', '.join(differ)}")
        raise SystemExit(bool(differ))
    table = {"textarena": textarena.__version__, "games": found}
    write_text_atomically(TABLE, json.dumps(table, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
