"""The server process: HTTP in front, a worker process behind. Never imports mlx."""
