"""How agent and environment talk: the tags in what is written, and the tokens of what is read."""
