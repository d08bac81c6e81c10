"""Auxiliary models of a run, `[models.NAME]` in a recipe: a frozen teacher or reward model, a process reward model or critic that is
trained along with the policy. See docs/guides/models.md.

`Scorer` is what every model can do, the policy and the reference included; `AuxiliaryModel` adds its own weights, heads and optimiser;
signals receive a `Models`.
"""
