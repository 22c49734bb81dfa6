"""Worlds, tool graphs, softmax policies and their exact theory."""
