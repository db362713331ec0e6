"""What can go wrong with a model before it is loaded."""


class ModelError(Exception):
    """One sentence for the user: what is wrong with which model, and what to do about it."""
