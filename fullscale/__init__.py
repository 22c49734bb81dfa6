"""The third rung: the same agent on a Hugging Face language model; on GPUs, where one is."""
