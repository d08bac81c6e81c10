"""Further models of a run, `[models.NAME]` in a recipe: a frozen teacher or reward model, a process reward model or critic that is trained
beside the policy. See docs/models.md.

`Scorer` is what every model can do, the policy and the reference included; `FurtherModel` adds weights, heads and an optimiser of its own;
`Models` is what signals are given.
"""
