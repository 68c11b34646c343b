"""Built-in models that are not language models: they make a governed run visible without a key."""

from runtime_pack.models.extractive import ExtractiveModel
from runtime_pack.models.gullible import GullibleModel

__all__ = ("ExtractiveModel", "GullibleModel")
