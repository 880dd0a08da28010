"""Compile functions that do not count references to arrays."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from optimizer.runtime.compiled import compiled

P = ParamSpec("P")
R = TypeVar("R")


def borrowing(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` compiled as `compiled` does, without counting references to arrays.

    The caller holds every array during the call, so counting is not needed. With a hundred arrays it would take most of
    the run time and of the compilation. Such a function cannot create arrays.
    """
    dispatcher: Any = compiled(function)
    dispatcher.targetoptions["_nrt"] = False
    return cast(Callable[P, R], dispatcher)


def woven(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` compiled as by `borrowing`, and inlined: to pass all arrays would cost more than its work."""
    dispatcher: Any = borrowing(function)
    dispatcher.targetoptions["forceinline"] = True
    return cast(Callable[P, R], dispatcher)
