"""What is asked and what can be found: questions with gold answers, passages, and the search between them."""
