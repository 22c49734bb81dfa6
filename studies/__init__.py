"""The studies: each one a hypothesis about training dynamics, stated as a claim and held against a measurement."""

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).resolve().parent
"""The folder of the studies that come with the package; their records lie in ``records/``."""
