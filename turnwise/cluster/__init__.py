"""A run over many processes: which engine collects which group, with which weights, and what happens when a process dies. This room does
not know recipes: setup/cluster.py passes it functions that make what an actor needs. `ray` is imported inside functions only."""
