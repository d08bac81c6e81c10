"""One learner over several processes, its ranks. See docs/guides/cluster-learner.md.

`group.py` the ranks, how they talk and what they decide together; `sharding.py` the model's weights in shares (FSDP2), which rank computes
which sequences, and what one does that runs out of memory in the middle of a pass; `tensors.py` whole tensors from shares and back;
`export.py` whole models.
"""
