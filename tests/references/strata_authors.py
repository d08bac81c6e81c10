"""StraTA: which strategies are carried out. From notes that quote the paper's formula (arXiv 2605.06642); no code could be had.

Farthest-point sampling: of factor · N candidates, the first one, then repeatedly the one whose largest inner product with the chosen ones is smallest.
Which candidate comes first is not said; here the first. Credit is not part of this file.
"""

import numpy as np


def farthest(embeddings, number):
    embeddings = np.asarray(embeddings, np.float64)
    chosen = [0]
    while len(chosen) < min(number, len(embeddings)):
        rest = [place for place in range(len(embeddings)) if place not in chosen]
        chosen.append(min(rest, key=lambda place: max(float(embeddings[place] @ embeddings[other]) for other in chosen)))
    return chosen
