"""What is installed on the nodes of a cluster. Every node is asked, without importing anything large there."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence

from turnwise.cluster.placement import Node
from turnwise.cluster.start import import_ray, one_line
from turnwise.util.errors import install_command

PACKAGES = ("turnwise", "torch", "transformers", "ray", "vllm", "peft", "bitsandbytes")
PATIENCE = 60.0  # seconds for all nodes to answer
VLLM = (0, 26)


def asks(packages: Sequence[str]) -> Callable[[], dict[str, str]]:
    """A function that returns the versions of packages where it is called, "" for one that is missing. It is sent as code, so a node
    without Turnwise can run it."""

    def versions() -> dict[str, str]:
        import platform
        from importlib import metadata
        from importlib.util import find_spec

        found = {"python": platform.python_version()}
        for name in packages:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = "unpacked" if find_spec(name) is not None else ""
        return found

    return versions


def probe(nodes: Iterable[Node]) -> dict[str, dict[str, str]]:
    """Versions by node and package. A node that does not answer has an entry `error` instead."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(asks(PACKAGES))
    asked = {
        node.id: task.options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote()
        for node in nodes
    }
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=PATIENCE) if asked else ([], [])
    found = {}
    for node, ref in asked.items():
        try:
            found[node] = ray.get(ref, timeout=1.0) if ref in ready else {"error": f"no answer within {PATIENCE:g} seconds"}
        except Exception as error:
            found[node] = {"error": one_line(error, 120)}
    return found


def here(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions in this process."""
    return asks(packages)()


def problems(nodes: Iterable[Node], found: Mapping[str, Mapping[str, str]], needed: Sequence[str]) -> list[str]:
    """What is wrong with the nodes: packages that are missing or too old, and versions that differ from those of this machine."""
    own, lines = here(needed), []
    for node in nodes:
        has = found.get(node.id, {})
        if "error" in has:
            lines.append(f"node {node.address} does not answer: {has['error']}")
            continue
        for name in needed:
            extra = {"peft": "lora", "bitsandbytes": "4bit", "vllm": "vllm"}.get(name)
            if not has.get(name):
                remedy = install_command(extra) if extra else "install it as on this machine"
                lines.append(f"node {node.address} lacks the package {name}: {remedy}")
            elif name == "vllm" and _number(has[name]) != VLLM:
                lines.append(f"node {node.address} has vllm {has[name]}; 0.26 is needed")
            elif name in ("turnwise", "torch") and own.get(name) and has[name] != own[name]:
                lines.append(f"node {node.address} has {name} {has[name]}, and this machine {own[name]}: install the same version")
        if has.get("python", "").split(".")[:2] != platform.python_version().split(".")[:2]:
            lines.append(f"node {node.address} has Python {has.get('python')}, and this machine {platform.python_version()}: use the same")
    return lines


def _number(version: str) -> tuple[int, int]:
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return VLLM
