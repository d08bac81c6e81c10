"""Kernels behind three verbs: attend, product, sample. No model, no request and no schedule is known here.

| | on a CPU, in torch | on a GPU, in Triton | on a Hopper GPU, in CUDA (`hopper/`) |
|---|---|---|---|
| attend | `attend_cpu.py` | `attend.py` | |
| product | torch's own | `product.py`, `product_4bit.py`; `product_table.py` says for which shapes | `hopper/tiles.py` |
| sample | `sample.py`, the definition of all | `sample_tiles.py`, `sample_top_p.py`, `sample_rows.py` | `hopper/sample.py` |

Beside them: `layer.py` norms, rotation and activation; `tables.py` what a step brings from the host; `experts.py` mixtures of experts;
`cache_8bit.py` keys and values in 8 bits; `gpu.py` what an SM can hold.
Importing `attend`, `product*`, `layer`, `tables` or a sampler of a GPU imports triton.
"""
