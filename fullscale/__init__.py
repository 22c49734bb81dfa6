"""The third rung: the same agent on a Hugging Face model and GPUs. Not built yet."""
