"""UI-S1's rollouts along an expert's trajectory, from the authors' code.

Source: X-PLUG/MobileAgent, commit 11cea575561fb7800b5fb6b6cafa56f7a91de11f, `UI-S1/verl/utils/dataset/universal_multiround.py:MultiRoundGenerator.apply_response`
(and `fetch_batch`). Confirmed by executing `apply_response` with scripted matches (tests/golden/ui_s1_plan.json, the same turns).

The turn that is patched is a turn of the attempt like any other; the expert's response stands in the history that later prompts see.
The turn after which the attempt ends is part of it.
"""


def played(matches, patches=2):
    """For each turn of the attempt whether the expert's response stands in the history: matches: whether the policy's action would match, per expert step.

    patches = -1: every wrong action is replaced.
    """
    result, errors = [], 0
    for match in matches:
        if match:
            result.append(False)
        elif patches == -1 or errors < patches:
            errors += 1
            result.append(True)
        else:
            result.append(False)
            break
    return result
