"""Build wheels and sdists of both distributions, and check them in empty environments, away from the repository: `make release`.

python packages/release.py                    build into dist/, check on every Python from 3.11 to 3.13 that this machine has
python packages/release.py --python python3.12    only this one

Wheels are built from the sdists. A check installs Turnwise's wheel into a new virtual environment and works in an empty folder: credit,
lab, pages and environments, without torch. Then it installs the extra `train` and the other wheel, and trains a tiny model for one
iteration. Nothing is uploaded: the last lines say what a person then does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = {"turnwise": ROOT, "turnwise-envs": ROOT / "packages" / "turnwise-envs"}
SUPPORTED = ("3.11", "3.12", "3.13")
TORCH = "torch==2.13.0"  # the exact version finds a CPU build where one is offered
WANTED = {  # files of each distribution, in its wheel and its sdist
    "turnwise": (
        *("turnwise/recipes/quickstart.toml", "turnwise/pages/static/page.html", "turnwise/cli/templates/env.py.txt", "turnwise/py.typed"),
        *("turnwise/kernels/hopper/tiles.cu", "LICENSE"),
    ),
    "turnwise-envs": ("turnwise_envs/recipes/shell.toml", "turnwise_envs/miniwob/page.js", "turnwise_envs/py.typed", "LICENSE"),
}
FOREIGN = ("tests", "docs", "benchmarks", "experiments")  # folders that belong into no wheel
CREDIT = """
import turnwise as tw
columns = dict(reward=[0.0, 1.0, 0.0, 0.0], anchor=["hall", "kitchen", "hall", "cellar"])
rollouts = tw.Rollouts.from_columns(group=[0] * 4, trajectory=[0, 0, 1, 1], t=[0, 1, 0, 1], **columns)
assert [round(float(x), 3) for x in tw.credit.compute("gigpo", rollouts)] == [1.414, 0.707, -1.414, -0.707]
"""
BASE_CHECKS = (
    ("--version",),
    ("doctor",),
    ("algos",),
    ("methods",),
    ("recipes",),
    ("new", "env", "my_game"),
    ("envs", "--check", "my_game.py:MyGame"),
    ("play", "household", "--agent", "expert"),
    ("eval", "--agent", "expert", "--env", "numberline", "--n", "4", "--save", "expert.json"),
    ("compare", "expert.json"),
    ("lab", "--quick", "--no-train", "--problems", "grid"),
)
CHECKS = (
    ("envs",),
    ("doctor", "--no-test"),
    ("train", "numberline-tiny", "iterations=1", "eval.n=6", "eval.repeats=1"),
    ("eval", "runs/numberline-tiny", "--n", "6"),
    ("report", "runs/numberline-tiny"),
    ("export", "runs/numberline-tiny", "model"),
)
TOLD = {("envs", "babyai"): "pip install 'minigrid>=3.0'", ("doctor", "--no-test"): "pip install 'ray>=2.56'"}  # where no clone is


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", help="check on this Python only; repeatable")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    version = versions_agree()
    files = build(arguments.out)
    look_inside(files)
    pythons = {python: _version_of(python) for python in arguments.python} if arguments.python else dict(found_pythons())
    failed = [python for python, number in pythons.items() if not check(python, number, files)]
    if failed or not pythons:
        print(f"\nNot ready: {'failed on ' + ', '.join(failed) if failed else 'no Python to check on'}")
        return 1
    print(f"\nChecked on Python {', '.join(sorted(pythons.values()))}. To release {version}:")
    print(f"  git tag -a v{version} -m 'Turnwise {version}' && git push --tags")
    print(f"  python -m twine upload {' '.join(os.path.relpath(file) for file in files)}")
    return 0


def versions_agree() -> str:
    """The version of turnwise/util/version.py, which turnwise-envs and the citation must share."""
    found = {"turnwise": (ROOT / "turnwise" / "util" / "version.py").read_text("utf-8").split('"')[-2]}
    project = tomllib.loads((PROJECTS["turnwise-envs"] / "pyproject.toml").read_text("utf-8"))["project"]
    found["turnwise-envs"] = project["version"]
    found["what turnwise-envs needs"] = project["dependencies"][0].partition(">=")[2]
    citation = (ROOT / "CITATION.cff").read_text("utf-8").splitlines()
    found["CITATION.cff"] = next(line.split(":")[1].strip() for line in citation if line.startswith("version:"))
    if len(set(found.values())) != 1:
        sys.exit(f"the versions differ: {found}")
    version = found["turnwise"]
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text("utf-8"):
        sys.exit(f"CHANGELOG.md has no section {version}")
    return version


def build(out: Path) -> list[Path]:
    """Wheels and sdists, from a clean copy of what git tracks."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools"
        _run(sys.executable, "-m", "venv", tools)
        _run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", "build", "twine")
        clean = Path(folder) / "clean"
        _run("git", "clone", "--quiet", ROOT, clean)
        for project in PROJECTS.values():
            _run(tools / "bin" / "python", "-m", "build", "--outdir", out, clean / project.relative_to(ROOT), quiet=True)
        files = sorted(out.iterdir())
        _run(tools / "bin" / "python", "-m", "twine", "check", "--strict", *files)
    return files


def look_inside(files: list[Path]) -> None:
    """What wheels and sdists must have, and wheels must not."""
    for file in files:
        wheel = file.suffix == ".whl"
        with zipfile.ZipFile(file) if wheel else tarfile.open(file) as opened:
            names = opened.namelist() if isinstance(opened, zipfile.ZipFile) else opened.getnames()
        wanted = WANTED["turnwise-envs" if file.name.startswith("turnwise_envs") else "turnwise"]
        missing = [name for name in wanted if not any(f"/{found}".endswith(f"/{name}") for found in names)]
        foreign = [name for name in names if wheel and name.split("/")[0] in FOREIGN]
        if missing or foreign:
            sys.exit(f"{file.name}: missing {missing}, foreign {foreign[:5]}")
        print(f"built {file.name}, {file.stat().st_size / 1e6:.1f} MB", flush=True)


def found_pythons() -> Iterator[tuple[str, str]]:
    """The Pythons of this machine, the first of each version."""
    installed = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
    names = [f"python{version}" for version in SUPPORTED] + [str(path) for path in installed] + [sys.executable]
    seen = set[str]()
    for name in names:
        number = _version_of(name)
        if number in SUPPORTED and number not in seen:
            seen.add(number)
            yield name, number


def _version_of(python: str) -> str:
    try:
        code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def check(python: str, number: str, files: list[Path]) -> bool:
    """Install the wheels into a new environment of this Python, and use them in an empty folder."""
    wheels = [file for file in files if file.suffix == ".whl"]
    with tempfile.TemporaryDirectory() as folder:
        place, work = Path(folder) / "venv", Path(folder) / "work"
        work.mkdir()
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        try:
            _run(python, "-m", "venv", place)
            pip = (place / "bin" / "python", "-m", "pip", "install", "--quiet")
            base, others = (sorted(file for file in wheels if file.name.startswith("turnwise-") == own) for own in (True, False))
            _run(*pip, *base, cwd=work)
            _run(place / "bin" / "python", "-c", CREDIT, cwd=work, env=outside)
            _commands(number, place, work, outside, BASE_CHECKS)
            told = subprocess.run([place / "bin" / "turnwise", "train"], cwd=work, env=outside, capture_output=True, text=True)
            lines = [line for line in told.stderr.splitlines() if "loading" not in line]
            if told.returncode != 2 or told.stdout or len(lines) != 1 or "pip install 'torch>=" not in lines[0]:
                print(f"Python {number}: turnwise train without torch does not say in one line what to install:\n{told.stderr}")
                return False
            _run(*pip, TORCH, cwd=work)
            _run(*pip, *(f"{file}[train]" for file in base), *others, cwd=work)
            _commands(number, place, work, outside, CHECKS)
            for words, text in TOLD.items():
                if text not in _run(place / "bin" / "turnwise", *words, cwd=work, quiet=True, env=outside):
                    print(f"Python {number}: turnwise {' '.join(words)} does not say: {text}")
                    return False
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"Python {number}: {error}\n{getattr(error, 'stdout', None) or ''}{getattr(error, 'stderr', None) or ''}")
            return False
    return True


def _commands(number: str, venv: Path, work: Path, env: dict[str, str], checks: tuple[tuple[str, ...], ...]) -> None:
    for words in checks:
        _run(venv / "bin" / "turnwise", *words, cwd=work, quiet=True, env=env)
        print(f"Python {number}: turnwise {' '.join(words)}", flush=True)


def _run(*words: str | Path, cwd: Path | None = None, quiet: bool = False, env: dict[str, str] | None = None) -> str:
    return subprocess.run(list(map(str, words)), cwd=cwd, check=True, capture_output=quiet, text=True, env=env).stdout or ""


if __name__ == "__main__":
    sys.exit(main())
