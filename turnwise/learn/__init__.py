"""Learning: packing, log-probs, the learner that owns the weights and the optimiser."""
