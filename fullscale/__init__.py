"""The third rung: the same agent on a Hugging Face model and GPUs. Its head's kernels are here; the agent is being built."""
