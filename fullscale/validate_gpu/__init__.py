"""Whether the kernels are right on this card, and how fast, in one command: ``python -m fullscale.validate_gpu``.

It needs torch, Triton and numpy, and nothing else.
"""
