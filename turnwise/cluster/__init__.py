"""Training over several processes, GPUs and nodes with Ray. This room knows no recipes: setup/cluster.py hands it functions that make what
an actor needs. `ray` is imported inside functions only."""
