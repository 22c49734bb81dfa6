"""Supervised starts: a transformer that knows some facts, plays by a script, and is measured before it is used."""
