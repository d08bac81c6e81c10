"""Retrieval: passages for a query, behind one small interface.

It is a separate package because an environment must not wait for torch to load in a worker: the retriever that needs a model imports its
library where it is used, and the others (BM25, a remote server) never do. `turnwise.envs.search` is built on it.
"""

from turnwise.retrieval.base import Hit, Passage, Retriever
from turnwise.retrieval.kinds import make_retriever

__all__ = ["Hit", "Passage", "Retriever", "make_retriever"]
