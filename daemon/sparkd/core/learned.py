"""What was learned with each context (model, engine, driver, kernel, nodes), for the day it comes back.

One context is in force; of the others the newest few are kept aside. Going back to a model, or to yesterday's
kernel, starts with what worked there.
"""

from __future__ import annotations

from sparkd.core.context import same_context
from sparkd.core.records import InContext

OTHERS_MAX = 8
"""Contexts kept aside: a few models by a few kernels. Beyond that the oldest has lost its meaning."""
NOTHING = InContext()

Shelf = tuple[InContext, ...]


def recall(last: InContext, others: Shelf, context: str) -> tuple[InContext, Shelf]:
    """Return what is known with *context*, and what is kept aside, oldest first.

    *last* is what was in force until now, *others* what lay aside.
    """
    if same_context(last.context, context):
        return last, others
    known = next((entry for entry in reversed(others) if same_context(entry.context, context)), None)
    aside = tuple(entry for entry in others if entry is not known and entry.context != last.context)
    if last.context and last != InContext(context=last.context):
        aside = (*aside, last)[-OTHERS_MAX:]
    return known or InContext(context=context), aside
