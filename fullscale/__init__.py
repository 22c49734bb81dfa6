"""The third rung: the same agent on a Hugging Face model and GPUs.

Kernels, world, engine and policy are here; what trains is not yet.
"""
