"""Monitors that look at what an agent wrote."""
