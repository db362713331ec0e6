"""pomona: an LLM inference server built on MLX.

The package itself imports nothing heavy: the server process must never load mlx.
"""

__version__ = "0.1.0"
