"""Tasks, turns, trajectories, batches and their columns; anchors and images; reading and writing them."""
