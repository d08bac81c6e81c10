"""What this machine has, and what is missing for what: what `turnwise doctor` shows.

Every part is a list of findings. A probe that fails is a finding too, and never hides the others.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from turnwise.util.errors import install_command, requirements
from turnwise.util.files import cache_folder
from turnwise.util.printable import printable
from turnwise.util.secret import redact
from turnwise.util.threads import all_memory, cores
from turnwise.util.version import VERSION

EXTRAS = {  # what each extra is for
    "train": "training, and playing with a model",
    "plots": "learning curves as pictures",
    "similar": "anchors that are similar and not equal",
    "lora": "training adapters",
    "4bit": "a base model in 4 bits on a small GPU",
    "tensorboard": "the tracker tensorboard",
    "wandb": "the tracker wandb",
    "trackio": "the tracker trackio",
    "parquet": "trajectories as Parquet",
    "webshop": "the environment webshop",
    "search": "question answering with BM25",
    "dense": "question answering with embeddings",
    "gymnasium": "environments of Gymnasium",
    "serve": "serving a model, and training programs that call one",
    "mcp": "tools of MCP servers",
    "cluster": "several GPUs or machines",
    "images": "models that see images",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `good` is None where nothing is right or wrong about it."""

    what: str
    value: str
    good: bool | None = None
    remedy: str = ""


Part = Callable[[], Iterator[Finding]]


def examine(trial: Part | None, tell: Callable[[str], None] = lambda part: None) -> Iterator[tuple[str, list[Finding]]]:
    """The findings, part after part, those of a self-test last; `tell` is called with the name of a part before it is looked at."""
    parts: dict[str, Part] = {
        "machine": machine,
        "torch": torch_build,
        "extras": extras,
        "programs": programs,
        "environments": environments,
        **({"self-test": trial} if trial is not None else {}),
    }
    for name, part in parts.items():
        tell(name)
        yield name, list(_safely(name, part))


def healthy(findings: dict[str, list[Finding]]) -> bool:
    """Whether nothing that every run needs has failed. Missing extras, programs and data concern only those who want them."""
    return not any(finding.good is False for part in ("machine", "torch", "self-test") for finding in findings.get(part, ()))


def report(findings: dict[str, list[Finding]]) -> str:
    """The findings as Markdown for an issue, without secrets, user names or folders of this machine."""
    lines = [f"turnwise {VERSION}, Python {platform.python_version()}"]
    for part, rows in findings.items():
        lines += ["", f"### {part}"]
        lines += [f"- {_mark(row)}{row.what}: {row.value}" for row in rows]
    return _anonymous("\n".join(lines))


def _mark(row: Finding) -> str:
    return {True: "", None: "", False: "MISSING OR FAILED: "}[row.good]


def _anonymous(text: str) -> str:
    text = redact(printable(text))
    names = {str(Path.home()): "~", tempfile.gettempdir(): "TMP", platform.node(): "HOST"}
    for variable in ("USER", "LOGNAME", "USERNAME"):
        names[os.environ.get(variable, "")] = "USER"
    for name, word in names.items():
        if len(name) > 2:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", word, text)
    return text


def _safely(name: str, part: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from part()
    except Exception as error:
        yield Finding(name, f"could not be examined: {type(error).__name__}: {error}", False)


# -- what is there ------------------------------------------------------------------------------------------------------------------------


def machine() -> Iterator[Finding]:
    """The computer: system, processor, memory, disk."""
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding("Python", platform.python_version(), supported, "" if supported else "use Python 3.11, 3.12 or 3.13")
    yield Finding("processor", f"{_processor()}, {cores()} cores for this process")
    memory = all_memory()
    yield Finding("memory", f"{memory / 1e9:.0f} GB", memory > 3.5e9, "the quickstart wants 4 GB")
    for what, folder in (("disk for runs", Path.cwd()), ("disk for the cache", cache_folder("."))):
        free = shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free
        yield Finding(what, f"{free / 1e9:.0f} GB free", free > 2e9, "free some space: a run of a small model writes a few hundred MB")


def _processor() -> str:
    try:
        names = re.findall(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"


def torch_build() -> Iterator[Finding]:
    """torch, transformers, and the GPUs that torch sees."""
    for name in ("torch", "transformers"):
        try:
            yield Finding(name, metadata.version(name), True)
        except metadata.PackageNotFoundError:
            yield Finding(name, "missing: nothing can be trained here", None, install_command("train"))
            return
    import torch

    kind = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "for the CPU"
    yield Finding("build", f"{kind}, {torch.backends.cpu.get_cpu_capability()}")
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    for number in gpus:
        about = torch.cuda.get_device_properties(number)
        yield Finding(
            f"GPU {number}", f"{about.name}, {about.total_memory / 1e9:.0f} GB, compute capability {about.major}.{about.minor}", True
        )
    if not gpus:
        visible = shutil.which("nvidia-smi") is not None
        way = "see CUDA_VISIBLE_DEVICES and nvidia-smi" if torch.version.cuda else "this torch is for the CPU: install one for CUDA"
        yield Finding("GPU", "torch sees none", False if visible else None, way if visible else "")
    elif find_spec("triton") is None:
        yield Finding("triton", "missing: kernels for the engine and the learner cannot be compiled", False, "pip install triton")


def extras() -> Iterator[Finding]:
    """The optional packages, by extra."""
    for extra, purpose in EXTRAS.items():
        packages = [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements(extra)]
        missing = [package for package in packages if not _installed(package)]
        value = f"missing {', '.join(missing)}" if missing else "installed"
        yield Finding(f"{extra} ({purpose})", value, None if missing else True, install_command(extra))


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def programs() -> Iterator[Finding]:
    """Programs that some environments, kernels and tests call."""
    wanted = (
        ("C compiler", ("cc", "gcc", "clang"), "triton's kernels on a GPU", "apt-get install gcc"),
        ("browser", ("chromium", "chromium-browser", "google-chrome"), "the environment miniwob", "apt-get install chromium"),
        ("sandbox", ("bwrap",), "the environment shell", "apt-get install bubblewrap"),
        ("Java", ("java",), "the environments scienceworld and textworld-express", "apt-get install default-jre-headless"),
    )
    for what, names, purpose, remedy in wanted:
        program = next((name for name in names if shutil.which(name)), None)
        yield Finding(f"{what} ({purpose})", program or "missing", True if program else None, remedy)


def environments() -> Iterator[Finding]:
    """The environments, and what those that are not ready lack."""
    from turnwise.envs.registry import describe

    rows = describe()
    yield Finding("ready", ", ".join(row["name"] for row in rows if row["ready"]), True)
    for row in rows:
        lacking = [need for need in row["needs"] if not need["present"]]
        if not row["ready"]:
            value = row["error"] or f"lacks {', '.join(need['what'] for need in lacking)}"
            yield Finding(row["name"], value, None, "; ".join(dict.fromkeys(need["remedy"] for need in lacking if need["remedy"])))
