"""The search that a model does natively: one codec for each protocol, pure; one request over egress."""

__all__ = ()
