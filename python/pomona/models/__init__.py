"""Model folders: finding them, checking them, and making them from files of other formats.

Nothing here imports mlx but the converter modules (`gguf_import`), which run in a process of their own.
"""

from pomona.models.errors import ModelError
from pomona.models.folder import ModelFolder
from pomona.models.progress import Progress, Report
from pomona.models.resolve import resolve_model

__all__ = ["ModelError", "ModelFolder", "Progress", "Report", "resolve_model"]
