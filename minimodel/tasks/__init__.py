"""The tasks: a fact base, and the search, read, verify and answer environment over it, in tokens."""
