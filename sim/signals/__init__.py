"""What is read off a run: behaviour by turn, drift, onsets, monitors. The same functions at every rung."""
