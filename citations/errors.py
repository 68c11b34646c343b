"""What can go wrong with citations.

::

    CitationsError
    └── InvalidCitation   a record or its wire form is not a citation
"""

__all__ = ("CitationsError", "InvalidCitation")


class CitationsError(Exception):
    """Root of the errors of this package."""


class InvalidCitation(CitationsError, ValueError):
    """A value that is not a citation.

    Attributes:
        field: Wire name of the field that is wrong (``documentId``), or the empty
            text when the whole value is.
        reason: One plain sentence, built by us; it repeats nothing of the value.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field or 'citation'}: {reason}")
