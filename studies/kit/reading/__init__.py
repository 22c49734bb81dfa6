"""Runs made by other trainers: their rollout files as episodes, what those show step by step, and where it changed."""
