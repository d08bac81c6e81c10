"""Tasks in several steps: what one command prints is needed for the next, or the order of commands matters."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from turnwise_envs.shell.scene import NAMES, Scene, Wanted, family, number_of, words
from turnwise_envs.shell.tree import Entry, file, folder


@family
def follow(rng: Random, level: int) -> Scene:
    """Follow notes from file to file."""
    hops = number_of(level, 1, 2, 4)
    word, other, aside, *chain = words(rng, hops + 4)
    tree = {f"{name}.txt": file(f"see {after}.txt\n") for name, after in pairwise(chain)}
    tree |= {f"{chain[-1]}.txt": file(f"word {word}\n"), f"{aside}.txt": file(f"word {other}\n")}
    goal = f"Follow the notes from {chain[0]}.txt to the last one, and write its word to answer.txt."
    commands = [*(f"cat {name}.txt" for name in chain), f"echo {word} > answer.txt"]
    return Scene(goal, tree, Wanted({"answer.txt": word}, loose=True), tuple(commands))


@family
def deliver(rng: Random, level: int) -> Scene:
    """Move files to where a list says."""
    count = number_of(level, 2, 5, 9)
    names = words(rng, 2 * count)
    goes = dict(zip(names[:count], names[count:], strict=True))
    tree: dict[str, Entry] = {place: folder() for place in goes.values()} | {f"{name}.txt": file(f"{name}\n") for name in goes}
    tree["list.txt"] = file("".join(f"{name}.txt to {place}\n" for name, place in goes.items()))
    chosen = rng.sample(names[:count], number_of(level, 1, 2, 3))
    moved = {f"{goes[name]}/{name}.txt": f"{name}\n" for name in chosen}
    kept = {f"{name}.txt": f"{name}\n" for name in goes if name not in chosen}
    goal = f"Move {' and '.join(f'{name}.txt' for name in chosen)} to where list.txt says, and no other file."
    commands = [command for name in chosen for command in (f"grep {name} list.txt", f"mv {name}.txt {goes[name]}")]
    return Scene(goal, tree, Wanted(kept | moved, [f"{name}.txt" for name in chosen]), tuple(commands))


@family
def weed(rng: Random, level: int) -> Scene:
    """Delete the files that a list marks."""
    names, dropped = words(rng, number_of(level, 3, 6, 10)), number_of(level, 1, 2, 3)
    gone = rng.sample(names, dropped)
    tree = {f"{name}.txt": file(f"{name}\n") for name in names}
    kept = {f"{name}.txt": f"{name}\n" for name in names if name not in gone}
    tree["list.txt"] = file("".join(f"{'drop' if name in gone else 'keep'} {name}.txt\n" for name in names))
    goal = "Delete what list.txt wants to drop, and nothing else."
    paths = [f"{name}.txt" for name in names if name in gone]
    return Scene(goal, tree, Wanted(kept, paths), ("grep drop list.txt", f"rm {' '.join(paths)}"))


@family
def swap(rng: Random, level: int) -> Scene:
    """Exchange the names of files."""
    names = words(rng, number_of(level, 2, 3, 4))
    tree = {f"{name}.txt": file(f"{' '.join(words(rng, 3))}\n") for name in names}
    wanted = {f"{after}.txt": tree[f"{name}.txt"].text for name, after in zip(names, names[1:] + names[:1], strict=True)}
    if level == 1:
        goal = f"Swap the names of {names[0]}.txt and {names[1]}.txt."
    else:
        goal = "Rename at once: " + ", ".join(f"{a}.txt to {b}.txt" for a, b in zip(names, names[1:] + names[:1], strict=True)) + "."
    commands = [f"mv {names[-1]}.txt old"]
    commands += [f"mv {name}.txt {after}.txt" for name, after in zip(names[-2::-1], names[:0:-1], strict=True)]
    return Scene(goal, tree, Wanted(wanted, ["old"]), (*commands, f"mv old {names[0]}.txt"))


@family
def setting(rng: Random, level: int) -> Scene:
    """Carry a setting from one file to another."""
    key, *others = rng.sample(["user", "group", "host", "mode", "team"], number_of(level, 1, 3, 5))
    first, second, *more = words(rng, 4)
    source, target = f"{first}.conf", f"{second}.conf"
    values = {path: {name: rng.choice(NAMES) for name in others} | {key: value} for path, value in zip((source, target), more, strict=True)}
    lines = {path: [f"{name} {value}" for name, value in sorted(own.items())] for path, own in values.items()}
    new = f"{key} {values[source][key]}"
    wanted = {source: lines[source], target: [new if line.startswith(f"{key} ") else line for line in lines[target]]}
    goal = f"Set {key} in {target} to its value in {source}. Change nothing else."
    tree = {path: file("\n".join(own) + "\n") for path, own in lines.items()}
    check = Wanted({path: "\n".join(own) for path, own in wanted.items()}, loose=True)
    return Scene(goal, tree, check, (f"grep {key} {source}", f"sed -i 's/{key} .*/{new}/' {target}"))
