"""The agent: it plays episodes in batches, turns rewards into coefficients, and updates a policy by them."""
