"""Training: losses, the stack of members, the loop, evaluation and the ensemble."""
