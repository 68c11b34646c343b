"""Values that no code but ours ever holds: frozen to the type checker, plain at run time.

A frozen class sets each field through `object.__setattr__`, and is three times as dear to make as one
that is not. What hosts, tools and models are given stays frozen at run time as well.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

__all__ = ("inner",)

if TYPE_CHECKING:
    from attrs import frozen as inner
else:
    inner = partial(attrs.define, unsafe_hash=True)
