"""Triton kernels, a file each.

What they have in common: a tile of logits is the product of rows of `hidden` and rows of `weight`, K upwards, accumulated in
float32 and never rounded; logits are scaled to bits once, t = z log2(e), as the hardware's exponential is 2^x. There are no
atomics and no locks: every number is written by one program, in an order that neither the number of rows, nor a row's place,
nor the number of processors has a say in. Rows past the last read zeros and are not written.

Sizes in capitals are known when a kernel is compiled, and integers that vary with the batch are not specialised on, so that
one binary serves all batches. `INTERPRET` is for Triton's interpreter, which runs kernels in NumPy where there is no GPU: it
multiplies raw bit patterns of bfloat16, so operands are cast to float32 there, in which products of two bfloat16 are exact.
"""
