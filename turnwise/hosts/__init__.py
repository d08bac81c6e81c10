"""Credit inside other people's trainers, unmodified: one file per trainer. Each makes rollouts from what the trainer has, computes credit
with `turnwise.credit`, and puts it where the trainer reads advantages. `versions.py` says which versions were tried; `traces.py` is what
verifiers and prime-rl share."""
