"""Closed forms the simulator must reproduce: queues, closed networks, order statistics, retries, staleness, step times."""
