"""One learner over several processes. See docs/cluster-learner.md.

`group.py` the processes and how they talk; `sharding.py` the model's weights in shares (FSDP2); `shares.py` which process computes which
sequences; `lockstep.py` passes that all processes make together, and what one does that runs out of memory in the middle of one;
`tensors.py` whole tensors from shares and back; `export.py` whole models; `checkpoint.py` checkpoints that any number of processes reads.
"""
