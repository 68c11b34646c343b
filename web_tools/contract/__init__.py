"""The strict contract of `web.search`: options, filters, envelope; no back end and no vendor."""

__all__ = ()
