"""Tasks about text: settings, words, joined parts, encodings."""

from __future__ import annotations

from base64 import b64encode
from random import Random

from turnwise_envs.shell.scene import Scene, Wanted, family, number_of, words
from turnwise_envs.shell.tree import Entry, file


@family
def configure(rng: Random, level: int) -> Scene:
    """Change a setting in several files."""
    old, new = rng.sample(range(1000, 9999), 2)
    key = rng.choice(["port", "limit", "size"])
    folders = ["etc", "etc/main"] if level > 1 else ["etc"]
    tree: dict[str, Entry] = {}
    wanted: dict[str, str] = {}
    for index, name in enumerate(words(rng, number_of(level, 2, 5, 9))):
        value = old if index == 0 or rng.random() < 0.7 else rng.randint(1000, 9999)
        lines = [f"{key}={value}", f"name={name}", f"old_{key}={old}", f"time={rng.randint(1, 60)}"]
        rng.shuffle(lines)
        path = f"{rng.choice(folders)}/{name}.conf"
        tree[path] = file("\n".join(lines) + "\n")
        wanted[path] = "\n".join(f"{key}={new}" if line == f"{key}={old}" else line for line in lines) + "\n"
    if level > 2:
        tree["etc/readme.txt"] = file(f"{key}={old}\n")
        wanted["etc/readme.txt"] = f"{key}={old}\n"
    goal = f"In every file under etc that ends in .conf, change the line {key}={old} to {key}={new}. Change no other line."
    return Scene(goal, tree, Wanted(wanted), (f'find etc -name "*.conf" -exec sed -i "s/^{key}={old}$/{key}={new}/" {{}} +',))


@family
def frequent(rng: Random, level: int) -> Scene:
    """Count words."""
    top = number_of(level, 1, 3, 5)
    names = words(rng, number_of(level, 4, 8, 14))
    counts = {name: 2 * (len(names) - index) + rng.randint(0, 1) for index, name in enumerate(names)}
    text = [name for name, count in counts.items() for _ in range(count)]
    rng.shuffle(text)
    lines = [" ".join(text[start : start + 6]) for start in range(0, len(text), 6)]
    first = sorted(counts, key=lambda name: -counts[name])[:top]
    what, form = (
        ("the most frequent word", "") if top == 1 else (f"the {top} most frequent words", ", one per line, the most frequent first")
    )
    command = f"tr ' ' '\\n' < text.txt | sort | uniq -c | sort -rn | head -{top} | awk '{{print $2}}' > top.txt"
    wanted = Wanted({"top.txt": "\n".join(first)}, loose=True)
    return Scene(f"Write {what} of text.txt to the file top.txt{form}.", {"text.txt": file("\n".join(lines) + "\n")}, wanted, (command,))


@family
def join(rng: Random, level: int) -> Scene:
    """Join numbered parts in the order of their numbers."""
    count = number_of(level, 4, 11, 21)
    parts = [" ".join(words(rng, 4)) + "\n" for _ in range(count)]
    tree = {f"parts/part-{number}.txt": file(part) for number, part in enumerate(parts, start=1)}
    goal = "Join the files in parts to one file whole.txt, in the order of the numbers in their names."
    return Scene(
        goal, tree, Wanted({"whole.txt": "".join(parts)}), (f"for i in $(seq {count}); do cat parts/part-$i.txt; done > whole.txt",)
    )


@family
def unique(rng: Random, level: int) -> Scene:
    """Lines of one list that another one lacks."""
    names = words(rng, number_of(level, 6, 12, 18))
    first, second = (rng.sample(names, len(names) * 2 // 3) for _ in range(2))
    if not set(first) - set(second):
        second = second[1:] if second[0] in first else [name for name in second if name != first[0]]
    only = sorted(set(first) - set(second))
    tree = {"first.txt": file("\n".join(first) + "\n"), "second.txt": file("\n".join(second) + "\n")}
    goal = "Write the lines of first.txt that are not in second.txt to only.txt, in alphabetical order."
    command = "sort first.txt > /tmp/a; sort second.txt > /tmp/b; comm -23 /tmp/a /tmp/b > only.txt"
    return Scene(goal, tree, Wanted({"only.txt": "\n".join(only)}, loose=True), (command,))


@family
def decode(rng: Random, level: int) -> Scene:
    """Decode base64, several times at higher levels."""
    text = " ".join(words(rng, 5)) + "\n"
    data = text.encode()
    for _ in range(level):
        data = b64encode(data) + b"\n"
    times = {1: "", 2: " twice", 3: " three times"}[level]
    pipe = " | ".join(["base64 -d secret.b64", *["base64 -d"] * (level - 1)])
    goal = f"The file secret.b64 was encoded in base64{times}. Write what it holds to secret.txt."
    return Scene(goal, {"secret.b64": file(data)}, Wanted({"secret.txt": text}), (f"{pipe} > secret.txt",))
