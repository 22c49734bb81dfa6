"""An engine behind an HTTP server: the client, what servers speak, how weights reach them, and whole episodes."""
