"""Runs mlx-lm's unmodified models on our CPU ops: single module instances are substituted by a table.

`table.py` says which classes fit which op. An instance is substituted after a trial of its kind has shown
that it then gives the same (`proofs.py`); what is not in the table, or fails, stays as it is. Whole decoder
layers come first, then the modules inside those that are left.
"""

from pomona.worker.substitutions.install import Installer, Substitutions
from pomona.worker.substitutions.modules import Substitution, substitute
from pomona.worker.substitutions.precision import float32_activations

__all__ = ["Installer", "Substitution", "Substitutions", "float32_activations", "substitute"]
