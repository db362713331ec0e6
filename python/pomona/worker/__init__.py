"""The worker process: one model, its scheduler and its runner. All MLX work happens on one thread.

`engine` is the loop, `scheduler` decides what runs, `runner` runs it, `sampler` picks tokens, `sequence`
is the state of one row. `model` loads the weights, `__main__` is the process.
"""
