"""The fused backend: a strip's logits live in registers, and only what they come to is written.

sources/       the kernels
tiling.py      which tile, how many warps and stages each of them gets
launching.py   tensors and descriptors in, kernels started
backend.py     the backend itself, which needs no Triton to be imported
compiling.py   all kernels compiled for the card without one, and what is to be seen in their machine code
"""
