"""Engines: what writes the agent's tokens. One in this process, others behind one protocol."""
