"""The studies: each one a hypothesis about training dynamics, stated as a claim and held against a measurement."""
