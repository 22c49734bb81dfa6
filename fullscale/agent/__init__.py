"""The agent of the third rung: a language model behind the protocols that the second rung's learner knows."""
