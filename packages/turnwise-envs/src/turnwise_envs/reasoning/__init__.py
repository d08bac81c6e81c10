"""reasoning-gym's generators of questions with answers that can be checked."""
