"""The tiny transformer and the words it reads and writes."""
