"""Tools an agent may call: how they are run, what is read on, and what checks an answer."""
