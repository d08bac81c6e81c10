"""What a cluster has and where each part of a recipe would be placed, as tables: `turnwise cluster check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from turnwise.cluster.placement import Node, crowded
from turnwise.cluster.probe import PACKAGES
from turnwise.recipe.schema import Config
from turnwise.setup.placement import Checked, check_cluster
from turnwise.util.console import Console


def check_command(config: Config) -> int:
    """Show it. Returns the exit code: 1 if the recipe cannot be placed."""
    checked = check_cluster(config)
    console = Console()
    console.print(node_table(checked.nodes, checked.versions))
    if checked.bundles:
        table = Table("part", "node", "cores", "GPUs", title="Placement", title_justify="left")
        for bundle in checked.bundles:
            cores = f"{bundle.cpus:g}" if bundle.cpus else "this process"
            table.add_row(bundle.part, bundle.node.address, cores, f"{bundle.gpus:g}" if bundle.gpus else "–")
        console.print(table)
    for note in filter(None, (crowded(checked.bundles), on_cpus(checked, config.device))):
        console.print(Text(note), soft_wrap=True)
    for line in checked.problems:
        console.print(Text(line, style="red"), soft_wrap=True)
    nodes = len({bundle.node.id for bundle in checked.bundles})
    fits = f"This recipe fits: {len(checked.bundles)} parts on {nodes} node{'s' if nodes > 1 else ''}."
    console.print(Text("This recipe cannot run on this cluster as it is." if checked.problems else fits), soft_wrap=True)
    return 1 if checked.problems else 0


def on_cpus(checked: Checked, device: str) -> str:
    """A note if a recipe that may run on GPUs would get none; otherwise ""."""
    if device == "cpu" or not checked.bundles or any(bundle.gpus for bundle in checked.bundles):
        return ""
    elsewhere = any(node.gpus for node in checked.nodes)
    where = ", although other nodes have GPUs: start the command on one of those" if elsewhere else ""
    return f"cluster: this machine has no GPU, so all parts would compute on CPUs{where}"


def node_table(nodes: Sequence[Node], versions: Mapping[str, Mapping[str, str]]) -> Table:
    """What each node has."""
    table = Table("node", "cores", "GPUs", "memory", "packages", title="Nodes", title_justify="left")
    for node in nodes:
        has = versions.get(node.id, {})
        there = [f"{name} {has[name]}" for name in ("python", *PACKAGES) if has.get(name)]
        missing = [name for name in PACKAGES if not has.get(name)]
        words = has.get("error") or "\n".join([", ".join(there), *([f"missing: {', '.join(missing)}"] if missing else [])])
        name = f"{node.address}\n(this machine)" if node.here else node.address
        table.add_row(name, str(node.cpus), str(node.gpus), f"{node.memory / 2**30:.1f} GiB", words)
    return table
