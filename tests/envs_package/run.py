"""Every environment on its real package: `make test-envs`.

    python tests/envs_package/run.py [--install] [--only NAME,NAME] [--write]

One environment after another: installs what pip can bring, runs the checker, and runs its tests in full. A package that cannot be installed
costs only its own environment. Prints JSON with one row per environment: the date, the versions of its packages, what the checker says, how
many tests passed, failed and were skipped, and the seconds of both. `--write` keeps each row in tests/envs_package/check.json as soon
as it is known; environments that were left out keep their last row. The exit code is 1 if a test or a check failed; what is missing on this
machine is reported and is not a failure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from needing import OPENENV_PYTHON, openenv_server
from packaging.requirements import Requirement

from turnwise.envs.install import missing
from turnwise.envs.needs import private_folder
from turnwise.envs.registry import Spec, names, spec
from turnwise.util.files import write_text_atomically

ROOT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).with_name("check.json")
MORE_TESTS = {"gymnasium": ("tests/envs/test_gymnasium.py",), "shell": ("tests/envs_package/test_shell_training.py",)}
DISTRIBUTIONS = {"turnwise": ROOT, "turnwise-envs": ROOT / "packages" / "turnwise-envs"}
GIVEN = {  # what the adapters play that play anything
    "gymnasium": "id=MiniGrid-DoorKey-5x5-v0",
    "verifiers": f"environment={Path(__file__).with_name('verifiers_letters.py')}:load_environment",
}
LONGEST = {"install": 900, "tests": 1800, "check": 1800}  # seconds for one environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install what pip can bring first")
    parser.add_argument("--only", default="", help="these environments, separated by commas")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.relative_to(ROOT)}")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in args.only.split(",") if args.only else names():
        rows[name] = one(name, args.install)
        if paths := tests_of(name):
            rows[name]["tests"] = run_tests(paths)
        print(f"{name}: {told(rows[name])}", file=sys.stderr, flush=True)
        if args.write:
            before = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
            text = json.dumps({"environments": dict(sorted({**before.get("environments", {}), **rows}.items()))}, indent=2)
            write_text_atomically(RESULT, text + "\n")
    print(json.dumps({"environments": rows}, indent=2))
    return int(any(row["check"] == "failed" or row.get("tests", {}).get("failed") for row in rows.values()))


def told(row: dict[str, Any]) -> str:
    """One line about an environment."""
    words = f"check {row['check']}, {row.get('seconds', 0)} s"
    if tests := row.get("tests"):
        words += f"; tests: {tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped, {tests['seconds']} s"
    return words


def one(name: str, install: bool) -> dict[str, Any]:
    """When and where, the versions of an environment's packages, and what the checker says."""
    error = ""
    if install and missing(spec(name)):
        print(f"installing what {name} needs", file=sys.stderr, flush=True)
        error = "".join(command(["envs", "--install", name], LONGEST["install"])[1:])
    row: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": versions(spec(name)),
    }
    if name != "openenv" or not Path(OPENENV_PYTHON).is_file():
        return row | checked(name, error)
    with openenv_server() as os.environ["OPENENV_URL"]:
        return row | checked(name, error)


def checked(name: str, error: str) -> dict[str, Any]:
    """What the checker says, or what is missing."""
    given = ["--option", GIVEN[name]] if name in GIVEN else []
    if left := [line for line in probe(name) if not given or "(not from pip)" not in line]:
        last = [line for line in error.splitlines() if line.startswith("turnwise: ") or "pip could not" in line]
        return {"check": "skipped", "missing": left, **({"installation": last[-1]} if last else {})}
    print(f"checking {name}", file=sys.stderr, flush=True)
    start = time.monotonic()
    code, told, aside = command(["envs", "--check", name, "--json", *given], LONGEST["check"])
    row = {"check": "passed" if code == 0 else "failed", "seconds": round(time.monotonic() - start, 1)}
    return row | ({"options": given[1]} if name == "gymnasium" else {}) | ({} if code == 0 else {"told": problems(told, aside)})


def command(words: list[str], seconds: float) -> tuple[int, str, str]:
    """A command of Turnwise in a process of its own: its exit code, its result and its other words."""
    try:
        done = subprocess.run([sys.executable, "-m", "turnwise", *words], capture_output=True, text=True, timeout=seconds, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return 124, "", f"no end within {seconds} seconds"
    return done.returncode, done.stdout, done.stderr


def probe(name: str) -> list[str]:
    """What an environment still needs, asked in a new process, which sees what was just installed."""
    program = (
        "import json; from turnwise.envs.install import missing; from turnwise.envs.registry import spec\n"
        f"print(json.dumps(missing(spec({name!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else [done.stderr.strip().splitlines()[-1]]


def problems(told: str, aside: str) -> list[str]:
    """The broken rules of the checker's report, or the last line of an error."""
    try:
        return [f"{row['rule']}: {row['seen']}" for row in json.loads(told)["problems"]]
    except (ValueError, KeyError, TypeError):
        return aside.strip().splitlines()[-1:]


def versions(entry: Spec) -> dict[str, str]:
    """The installed packages that the needs of an environment name."""
    extras = {
        f"{name}[{extra}]": requirements
        for name, folder in DISTRIBUTIONS.items()
        for extra, requirements in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"].items()
    }
    result = {}
    for install in (need.install for need in entry.needs if need.install is not None):
        path = [*sys.path, *([str(private_folder(install.private))] if install.private else [])]
        for requirement in (one for wanted in install.requirements for one in extras.get(wanted, [wanted])):
            package = Requirement(requirement).name
            for distribution in metadata.distributions(name=package, path=path):
                result[package] = distribution.version
    return result


def tests_of(name: str) -> list[Path]:
    """The test files of an environment on its real package."""
    own = ROOT / "tests" / "envs_package" / f"test_{name.replace('-', '_')}.py"
    wanted = [own, *(ROOT / path for path in MORE_TESTS.get(name, ()))]
    return [path for path in wanted if path.is_file()]


def run_tests(paths: list[Path]) -> dict[str, Any]:
    """Test files in a process of their own: counts, names of what failed, reasons of what was skipped, seconds."""
    print(f"testing {', '.join(path.name for path in paths)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", *map(str, paths)]
    start = time.monotonic()
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST["tests"], cwd=ROOT).stdout
    except subprocess.TimeoutExpired:
        output = "FAILED no end within the limit\n1 failed"
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", output.strip().splitlines()[-1])}
    failed = counts.get("failed", 0) + counts.get("error", 0) + (not counts)
    if failed:
        print(output[-6000:], file=sys.stderr)
    told = re.findall(r"^(?:FAILED|ERROR|SKIPPED) (.*)$", output, re.MULTILINE)
    row = {"passed": counts.get("passed", 0), "failed": failed, "skipped": counts.get("skipped", 0)}
    return row | ({"told": told} if told else {}) | {"seconds": round(time.monotonic() - start, 1)}


if __name__ == "__main__":
    sys.exit(main())
