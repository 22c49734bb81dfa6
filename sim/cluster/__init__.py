"""A discrete-event simulator of asynchronous agentic RL: engines, tools, schedulers, a learner, one clock."""
