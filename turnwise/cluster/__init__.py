"""Many processes: who collects which group, with which weights, and what happens when one of them dies. This room knows no recipes:
setup/cluster.py hands it functions that make what an actor needs. `ray` is imported inside functions only."""
