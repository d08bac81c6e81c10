"""What a shell task consists of: files, a goal in words, a check of the resulting state, and commands that reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from turnwise.util.errors import TurnwiseError, unknown_name
from turnwise_envs.shell.tree import Entry, Tree

LEVELS = (1, 2, 3)
NAMES = (
    "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "hazel", "iris", "jade",
    "kelp", "lotus", "maple", "north", "opal", "pine", "quartz", "river", "stone", "tulip",
)  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """A script that is run in a fresh sandbox, in which the resulting files are in /work and cannot be changed, and the output that it must
    give; without one, its exit code must be 0."""

    script: str
    output: str | None = None


@dataclass(frozen=True)
class Scene:
    """The start of a task. `setup` is run in the sandbox before the agent sees it. `check` returns what is wrong with the resulting files,
    empty if nothing is; `probe` then runs what the agent made. `expert` are commands that solve the task."""

    goal: str
    tree: Tree
    check: Callable[[Tree], str]
    expert: tuple[str, ...]
    setup: tuple[str, ...] = ()
    probe: Probe | None = None


Family = Callable[[Random, int], Scene]
families: dict[str, Family] = {}


def family(make: Family) -> Family:
    """Register a family of tasks under the name of its function."""
    families[make.__name__] = make
    return make


def scene(name: str, level: int, seed: str) -> Scene:
    """The scene of a task; the same everywhere."""
    if name not in families:
        raise unknown_name("family of shell tasks", name, families)
    if level not in LEVELS:
        raise TurnwiseError(f"shell: a level is one of {', '.join(map(str, LEVELS))}, not {level!r}")
    return families[name](Random(f"shell {name} {level} {seed}"), level)


@dataclass
class Wanted:
    """A check: these files with this content (`files`), nothing at these paths (`gone`), these permission bits set or cleared
    (`modes`: path → (bits, value)), these links. Other files are of no interest."""

    files: Mapping[str, bytes | str] = field(default_factory=dict)
    gone: Iterable[str] = ()
    modes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    loose: bool = False  # blanks and empty lines at the ends do not count

    def __call__(self, tree: Tree) -> str:
        for path, content in self.files.items():
            wanted = content.encode() if isinstance(content, str) else content
            if problem := self._file(tree.get(path), wanted):
                return f"{path} {problem}"
        for path in self.gone:
            if path in tree:
                return f"{path} still exists"
        for path, (bits, value) in self.modes.items():
            if path not in tree or tree[path].mode & bits != value:
                return f"{path} has other permissions"
        for path, target in self.links.items():
            if path not in tree or (tree[path].link or "").rstrip("/").removeprefix("./").removeprefix("/work/") != target:
                return f"{path} is not a link to {target}"
        return ""

    def _file(self, entry: Entry | None, wanted: bytes) -> str:
        if entry is None:
            return "is missing"
        if entry.data is None:
            return "is not a file"
        mine = entry.data
        if self.loose:
            mine, wanted = (b"\n".join(line.strip() for line in data.strip().splitlines()) for data in (mine, wanted))
        return "" if mine == wanted else "has other content"


def words(rng: Random, count: int) -> list[str]:
    """Different names."""
    plain = rng.sample(NAMES, min(count, len(NAMES)))
    return plain + [f"{name}{number}" for number, name in enumerate(rng.choices(NAMES, k=max(0, count - len(plain))), start=2)]


def number_of(level: int, *sizes: int) -> int:
    """The size for a level."""
    return sizes[level - 1]
