"""Tasks about files and folders: rename, gather, move, delete, lay out, link, permit."""

from __future__ import annotations

from random import Random

from turnwise_envs.shell.scene import Scene, Wanted, family, number_of, words
from turnwise_envs.shell.tree import Entry, file, folder, link


def _line(rng: Random) -> str:
    return " ".join(words(rng, rng.randint(3, 6))) + "\n"


def _nested(rng: Random, top: str, level: int) -> list[str]:
    """Folders to put files into, deeper at higher levels."""
    names = words(rng, number_of(level, 2, 4, 6))
    found = [top]
    for name in names:
        parent = rng.choice(found) if level > 1 else top
        found.append(f"{parent}/{name}")
    return found


@family
def rename(rng: Random, level: int) -> Scene:
    """Change the ending of files."""
    old, new = rng.sample(["txt", "md", "text", "log", "out"], 2)
    folders = ["notes"] if level < 3 else _nested(rng, "notes", 2)
    tree: dict[str, Entry] = {}
    moved: dict[str, str] = {}
    for index, name in enumerate(words(rng, number_of(level, 3, 6, 10))):
        path = f"{rng.choice(folders)}/{name}"
        tree[f"{path}.{old}"] = file(_line(rng))
        moved[f"{path}.{old}"] = f"{path}.{new}"
        if level > 1 and index % 2:
            tree[f"{path}.{rng.choice(['csv', 'dat'])}"] = file(_line(rng))
    where = "in notes" if level < 3 else "in notes and all of its folders"
    others = {path: entry.text for path, entry in tree.items() if path not in moved}
    wanted = {moved[path]: tree[path].text for path in moved}
    command = f'find notes -name "*.{old}" | while read -r f; do mv "$f" "${{f%.{old}}}.{new}"; done'
    return Scene(
        f"Rename every file {where} that ends in .{old} so that it ends in .{new}.", tree, Wanted(others | wanted, moved), (command,)
    )


@family
def gather(rng: Random, level: int) -> Scene:
    """Copy files found by name."""
    folders, word = _nested(rng, "data", level), rng.choice(["report", "draft", "final"])
    tree: dict[str, Entry] = {"found": folder()}
    wanted: dict[str, str] = {}
    for index, name in enumerate(words(rng, number_of(level, 4, 8, 14))):
        hit = index % 2 == 0
        base = f"{name}-{word}.txt" if hit else f"{name}.txt"
        path, entry = f"{rng.choice(folders)}/{base}", file(_line(rng))
        tree[path] = entry
        wanted[path] = entry.text
        if hit:
            wanted[f"found/{base}"] = entry.text
    gone = [f"found/{path.rpartition('/')[2]}" for path in tree if word not in path and path != "found"]
    goal = f"Copy every file under data whose name contains {word} into the folder found. Copy nothing else."
    return Scene(goal, tree, Wanted(wanted, gone), (f'find data -type f -name "*{word}*" -exec cp {{}} found/ \\;',))


@family
def sort_out(rng: Random, level: int) -> Scene:
    """Move files found by content."""
    folders, mark = _nested(rng, "src", level), rng.choice(["TODO", "FIXME", "SECRET"])
    tree: dict[str, Entry] = {}
    wanted: dict[str, str] = {}
    gone: list[str] = []
    for index, name in enumerate(words(rng, number_of(level, 3, 7, 12))):
        path, lines = f"{rng.choice(folders)}/{name}.c", [_line(rng) for _ in range(rng.randint(1, 3))]
        if index % 2 == 0:
            lines.insert(rng.randint(0, len(lines)), f"// {mark} {_line(rng)}")
            wanted[f"marked/{name}.c"] = "".join(lines)
            gone.append(path)
        else:
            wanted[path] = "".join(lines)
        tree[path] = file("".join(lines))
    goal = f"Make a folder called marked. Move every file under src that contains the word {mark} into it. Leave the others where they are."
    commands = ("mkdir marked", f'grep -rl {mark} src | while read -r f; do mv "$f" marked/; done')
    return Scene(goal, tree, Wanted(wanted, gone), commands)


@family
def clean(rng: Random, level: int) -> Scene:
    """Delete files by ending, and by size at higher levels."""
    folders, limit = _nested(rng, "cache", level), 1000
    tree: dict[str, Entry] = {}
    gone: list[str] = []
    for index, name in enumerate(words(rng, number_of(level, 4, 8, 14))):
        large, temporary = rng.random() < 0.5 or index == 1, index % 3 != 0
        path = f"{rng.choice(folders)}/{name}.{'tmp' if temporary else 'dat'}"
        tree[path] = file("x" * (rng.randint(1200, 1900) if large else rng.randint(10, 800)))
        if temporary and (large or level == 1):
            gone.append(path)
    kept = {path: entry.text for path, entry in tree.items() if path not in gone}
    size, test = (f" and is larger than {limit} bytes", f" -size +{limit}c") if level > 1 else ("", "")
    goal = f"Delete every file under cache that ends in .tmp{size}. Delete nothing else."
    return Scene(goal, tree, Wanted(kept, gone), (f'find cache -type f -name "*.tmp"{test} -delete',))


@family
def duplicates(rng: Random, level: int) -> Scene:
    """Delete copies of files."""
    names = sorted(words(rng, number_of(level, 4, 8, 14)))
    contents = [_line(rng) for _ in range(max(2, len(names) // 2))]
    tree = {f"photos/{name}.raw": file(rng.choice(contents)) for name in names}
    seen: set[str] = set()
    gone = []
    for path in sorted(tree):
        if tree[path].text in seen:
            gone.append(path)
        seen.add(tree[path].text)
    if not gone:
        last = sorted(tree)[-1]
        tree[last] = tree[sorted(tree)[0]]
        gone = [last]
    kept = {path: entry.text for path, entry in tree.items() if path not in gone}
    goal = (
        "In the folder photos some files have the same content. Of each such set keep the file whose name comes first in the alphabet, and "
        "delete the others."
    )
    command = "cd photos && sha256sum * | sort -k2 | awk 'seen[$1]++ {print $2}' | xargs -r rm; cd .."
    return Scene(goal, tree, Wanted(kept, gone), (command,))


@family
def layout(rng: Random, level: int) -> Scene:
    """Make the files that a list describes."""
    count = number_of(level, 2, 4, 8)
    folders = _nested(rng, "site", level)
    plan = {f"{rng.choice(folders)}/{name}.txt": " ".join(words(rng, 2)) for name in words(rng, count)}
    text = "".join(f"{path}: {content}\n" for path, content in plan.items())
    goal = (
        "Each line of plan.txt is a path and a text, separated by a colon and a blank. Make each of these files with its text as the only "
        "line. Make the folders that are missing."
    )
    command = (
        'while IFS= read -r line; do p=${line%%: *}; mkdir -p "$(dirname "$p")"; printf \'%s\\n\' "${line#*: }" > "$p"; done < plan.txt'
    )
    return Scene(goal, {"plan.txt": file(text)}, Wanted(plan, loose=True), (command,))


@family
def links(rng: Random, level: int) -> Scene:
    """Mend symbolic links."""
    versions = sorted(rng.sample(range(1, 10 if level == 1 else 30), number_of(level, 2, 3, 5)))
    tree: dict[str, Entry] = {f"versions/v{version}/name.txt": file(f"version {version}\n") for version in versions}
    tree["current"] = link(f"versions/v{versions[0]}")
    broken: list[str] = []
    good: dict[str, str] = {}
    for index, name in enumerate(words(rng, number_of(level, 0, 4, 8))):
        target = f"../versions/v{rng.choice(versions)}" if index % 2 else f"../versions/w{rng.randint(1, 9)}"
        tree[f"links/{name}"] = link(target)
        if index % 2:
            good[f"links/{name}"] = target
        else:
            broken.append(f"links/{name}")
    newest = f"versions/v{versions[-1]}"
    more = " Also delete every link in the folder links whose target does not exist, and no other." if level > 1 else ""
    goal = f"The link current should point to the folder in versions with the highest number.{more}"
    commands = [f"ln -sfn {newest} current"] + (["find links -xtype l -delete"] if level > 1 else [])
    return Scene(goal, tree, Wanted(gone=broken, links={"current": newest} | good), tuple(commands))


@family
def permissions(rng: Random, level: int) -> Scene:
    """Set permission bits."""
    tree: dict[str, Entry] = {}
    modes: dict[str, tuple[int, int]] = {}
    folders = ["bin"] if level == 1 else _nested(rng, "bin", level)
    for index, name in enumerate(words(rng, number_of(level, 3, 6, 10))):
        script = index % 2 == 0
        mode = rng.choice([0o644, 0o664]) | (0o002 if rng.random() < 0.5 else 0)
        path = f"{rng.choice(folders)}/{name}.{'sh' if script else 'txt'}"
        tree[path] = file("echo hi\n" if script else _line(rng), mode)
        bits, value = 0o100, 0o100 if script else 0
        if level > 1:
            bits |= 0o002
        modes[path] = (bits, value)
    more = " Nobody but owner and group may write any file under bin." if level > 1 else ""
    goal = f"Make every file under bin that ends in .sh executable for its owner, and no other file.{more}"
    commands = ['find bin -name "*.sh" -exec chmod u+x {} +'] + (["find bin -type f -exec chmod o-w {} +"] if level > 1 else [])
    return Scene(goal, tree, Wanted(modes=modes), tuple(commands))
