"""Many processes: who collects which group, with which weights, and what happens when one of them dies."""
