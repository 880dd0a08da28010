"""Machine code that only borrows arrays."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from optimizer.runtime.compiled import compiled

P = ParamSpec("P")
R = TypeVar("R")


def borrowing(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` compiled as `compiled` does, without counting references to arrays.

    The caller holds every array for as long as it runs, so there is nothing to count; with a hundred arrays at hand the
    counting would take most of the time, and most of the compilation. Such a function cannot make arrays.
    """
    dispatcher: Any = compiled(function)
    dispatcher.targetoptions["_nrt"] = False
    return cast(Callable[P, R], dispatcher)


def woven(function: Callable[P, R]) -> Callable[P, R]:
    """As `borrowing`, and made part of what calls it: what is done per item costs less than handing over all arrays."""
    dispatcher: Any = borrowing(function)
    dispatcher.targetoptions["forceinline"] = True
    return cast(Callable[P, R], dispatcher)
