"""The model of record once more, compiled by numba: the same handlers over records in arrays, equal event by event."""
