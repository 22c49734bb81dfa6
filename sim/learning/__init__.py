"""The GRPO family as composed rules, optimisers, and the training loop that applies them to softmax tables."""
