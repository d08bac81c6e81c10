"""ARPO's hard attribution (arXiv 2507.19849, "hard advantage estimation").

Source: a digest of the paper; the authors' code (RUC-NLPIR/ARPO at a95cd089) has no function for it: it trains the soft form,
which is GRPO over all rollouts.  Neither the paper's text nor code could be executed.

Every rollout has its GRPO advantage (R - mean) / std over the rollouts of the prompt.  A token that d rollouts share because
they branched after it gets the mean of their d advantages; a token of one rollout alone keeps that rollout's.
The paper writes std without an epsilon and does not say which; sample std + 1e-6 is verl's, which the repository trains with.
"""

import numpy as np


def advantages(returns, group, branches):
    """Advantage of every turn: a list per rollout.

    branches: per rollout the list of ids of its turns; a turn that two rollouts share has the same id in both."""
    own = np.zeros(len(returns))
    for i in range(len(returns)):
        members = [float(returns[j]) for j in range(len(returns)) if group[j] == group[i]]
        if len(set(members)) > 1:
            own[i] = (returns[i] - np.mean(members)) / (np.std(members, ddof=1) + 1e-6)
    out = []
    for i in range(len(returns)):
        row = []
        for turn in branches[i]:
            sharing = [own[j] for j in range(len(returns)) if group[j] == group[i] and turn in branches[j]]
            row.append(sum(sharing) / len(sharing))
        out.append(row)
    return out
