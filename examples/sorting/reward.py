"""The reward for sorting digits: the share of places that are right. Everything right is 1, which counts as a success."""


def score(task, response):
    wanted, said = task["answer"].split(), response.split()
    right = sum(a == b for a, b in zip(wanted, said, strict=False))
    return right / max(len(wanted), len(said))
