"""The search plugin: `search` and `search_url`, of which a model sees one. It knows no vendor."""

__all__ = ()
