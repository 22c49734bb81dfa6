"""Asynchronous rollouts in real time: what may start, what is taken, and the threads that play."""
