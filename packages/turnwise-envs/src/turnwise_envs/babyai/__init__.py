"""BabyAI: instructions in a grid world, from the package minigrid."""
