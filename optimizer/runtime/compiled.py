"""Compile inner loops to machine code: numba compiles a function marked `@compiled` at its first call.

Compiled code is cached on disk: in the directory that NUMBA_CACHE_DIR names, else beside the source, else in the user's
cache directory. Where none can be written (a read-only file system, a full disk) each process compiles anew. A failure
of the cache costs time, never a result.

numba's own cache notices changes of the function's source file only: the function would keep calling old code of
functions in other files. Here compiled code is valid only as long as no source of the function's folder or of the
package `optimizer` has changed.
"""

import contextlib
import hashlib
import pickle
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core import caching
from typing_extensions import override

# Code for any machine of an architecture: an image can contain compiled code, and all machines round alike. The loops
# are scalar and gain nothing from wider registers.
numba.config.CPU_NAME = "generic"
numba.config.CPU_FEATURES = ""

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` compiled, with IEEE arithmetic: no reordering, so that every machine has the same result.

    The result runs without the interpreter's lock. `function` may call other compiled functions; it must not do I/O.
    """
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(function)
    with contextlib.suppress(RuntimeError, OSError):  # no directory can be written
        dispatcher._cache = _Cache(function)  # noqa: SLF001  # all that numba's `enable_caching` does
    return cast(Callable[P, R], dispatcher)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` for inlining into the compiled function that calls it. Use it for large ones with one caller.

    With `compiled` such a function would be compiled twice: as a function and as a copy in its caller.
    """
    return cast(Callable[P, R], numba.njit(inline="always", nogil=True, error_model="numpy")(function))


class _Stamped:
    """A cache location whose compiled code is valid as long as no source of the whole package changes."""

    _py_file: str

    def get_source_stamp(self) -> Any:
        folders = {Path(self._py_file).parent, Path(__file__).parents[1]}
        return super().get_source_stamp(), *map(_stamp, sorted(folders))  # type: ignore[misc]


class _Provided(_Stamped, caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """The directory that NUMBA_CACHE_DIR names."""


class _InTree(_Stamped, caching.InTreeCacheLocator):  # type: ignore[misc]
    """`__pycache__` beside the source; a read-only one too, for images that contain compiled code."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        found = super().from_function(py_func, py_file)
        if found is None and any((Path(py_file).parent / "__pycache__").glob("*.nbi")):
            found = cls(py_func, py_file)
        return found


class _UserWide(_Stamped, caching.UserWideCacheLocator):  # type: ignore[misc]
    """The user's cache directory."""


class _Impl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [_Provided, _InTree, _UserWide]  # noqa: RUF012


_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError, ImportError, AttributeError)
"""Errors of reading an entry: a full disk, a damaged file, or an older version that names removed modules."""


class _Index(caching.IndexDataCacheFile):  # type: ignore[misc]
    """numba's index of a function's entries; an unreadable one counts as empty and is written anew."""

    @override
    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except _UNREADABLE:
            return {}


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """numba's cache without its errors: on a full disk or a damaged entry the function is compiled again."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Index(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    @override
    @contextlib.contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        with contextlib.suppress(*_UNREADABLE):
            yield


@lru_cache(maxsize=8)
def _stamp(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
