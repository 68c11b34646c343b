"""Adapters of search back ends to the `WebSearchProvider` port."""

__all__ = ()
