"""Supervised starts: a habit written down in real episodes, taught to a language model, and kept."""
