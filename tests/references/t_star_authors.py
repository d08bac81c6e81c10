"""T-STAR (arXiv 2604.07165): values on the tree of merged turns.

Source: a digest of reading notes; neither the paper's text nor code could be had, so nothing was executed.

- Turns of the attempts of a task are merged into nodes of a tree.  A leaf's value is the return of its attempt; the value of
  a node is the average over what follows it (Bellman backup).  A(node) = (Q(node) - mean) / std with mean and std of the
  group's returns.
- The notes leave open whether a shared node averages over its children or over the attempts that pass through it; the two
  differ when children have different numbers of attempts.  "attempts" is the average over attempts, "children" the backup
  child by child.
- A node of d attempts averages d returns, which is where the paper's variance 1 / d comes from: that is "attempts".
"""

import numpy as np


def advantages(returns, group, nodes, average="attempts"):
    """Advantage of every turn: a list per attempt.

    nodes: per attempt the path of node ids of its turns; two attempts share a node when the id is the same and the paths
    before it are the same."""
    paths = [[tuple(path[: turn + 1]) for turn in range(len(path))] for path in nodes]

    def value(prefix, task):
        through = [i for i in range(len(returns)) if group[i] == task and prefix in paths[i]]
        if average == "attempts":
            return sum(returns[i] for i in through) / len(through)
        parts = [float(returns[i]) for i in through if paths[i][-1] == prefix]
        children = {paths[i][len(prefix)] for i in through if len(paths[i]) > len(prefix)}
        parts += [value(child, task) for child in children]
        return sum(parts) / len(parts)

    out = []
    for i in range(len(returns)):
        members = [float(returns[j]) for j in range(len(returns)) if group[j] == group[i]]
        mean, deviation = np.mean(members), np.std(members, ddof=1) if len(members) > 1 else 0.0
        out.append([0.0 if deviation == 0 else (value(prefix, group[i]) - mean) / (deviation + 1e-6) for prefix in paths[i]])
    return out
