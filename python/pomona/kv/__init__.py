"""The paged key-value cache as the worker's models see it.

`layout` reads what a model's layers need, `store` owns slabs, blocks, tree and snapshots, `readers` are
the cache objects handed to mlx-lm's models, `seam` is the one function replaced in mlx-lm, and `probe`
chooses the reader at load by comparing with stock mlx-lm.
"""
