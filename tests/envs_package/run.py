"""Every environment on its real package: `make test-envs`.

    python tests/envs_package/run.py [--install] [--only NAME,NAME] [--write]

One environment after another: installs what pip can bring, and runs the checker and its tests in full. A package that cannot be installed
costs only its own environment. Prints JSON with one row per environment: the date, the versions of its packages, how many tests passed,
failed and were skipped, which and why, and the seconds. `--write` keeps each row in tests/envs_package/check.json as soon as it is known;
environments that were left out keep their last row. The exit code is 1 if a test failed; what is missing on this machine is reported and is
not a failure.
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

from packaging.requirements import Requirement

from turnwise.config.addons import ENVIRONMENTS
from turnwise.envs.install import missing
from turnwise.envs.needs import private_folder
from turnwise.envs.registry import Spec, spec
from turnwise.util.files import write_text_atomically

ROOT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).with_name("check.json")
DISTRIBUTIONS = {"turnwise": ROOT, "turnwise-envs": ROOT / "packages" / "turnwise-envs"}
LONGEST = {"install": 900, "tests": 3600}  # seconds for one environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install what pip can bring first")
    parser.add_argument("--only", default="", help="these environments, separated by commas")
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.relative_to(ROOT)}")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in args.only.split(",") if args.only else ["gymnasium", *ENVIRONMENTS]:
        if args.install and missing(spec(name)):
            print(f"installing what {name} needs", file=sys.stderr, flush=True)
            subprocess.run([sys.executable, "-m", "turnwise", "envs", "--install", name], timeout=LONGEST["install"], cwd=ROOT, stdout=2)
        rows[name] = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            "versions": versions(spec(name)),
            "tests": run_tests(name),
        }
        print(f"{name}: {rows[name]['tests']}", file=sys.stderr, flush=True)
        if args.write:
            before = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
            text = json.dumps({"environments": dict(sorted({**before.get("environments", {}), **rows}.items()))}, indent=2)
            write_text_atomically(RESULT, text + "\n")
    print(json.dumps({"environments": rows}, indent=2))
    return int(any(row["tests"]["failed"] for row in rows.values()))


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


def run_tests(name: str) -> dict[str, Any]:
    """The tests of an environment, in a process of their own: counts, names of what failed, reasons of what was skipped, seconds."""
    print(f"testing {name}", file=sys.stderr, flush=True)
    file = f"test_{name.replace('-', '_')}"
    paths = [ROOT / "tests" / "envs_package", ROOT / "tests" / "envs" / "test_gymnasium.py"]
    chosen = f"{file} or (test_environments and {name})"
    command = [sys.executable, "-m", "pytest", "-rfEs", "-p", "no:cacheprovider", "-k", chosen, *map(str, paths)]
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
