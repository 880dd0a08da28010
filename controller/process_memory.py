"""Keeps the operator's memory small: collects garbage after each cycle and returns free memory to the system.

Memory is returned only with glibc. With another C library, only garbage is collected.
"""

import ctypes
import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGE_BYTES = 128 * 1024
_ARENAS = 2
_COMPILER = "libllvmlite"
_CODE = "r-xp"


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def configure_malloc() -> None:
    """Let all threads share two arenas of malloc, and return large blocks to the system when they are freed.

    By default each thread has its own arena, and the size from which blocks are returned grows to that of the largest
    block ever freed. A cycle over thousands of resources then leaves hundreds of MiB unused (mallopt(3)).
    """
    if (library := _glibc()) is not None:
        library.mallopt(_ARENA_MAX, _ARENAS)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _LARGE_BYTES)


@contextmanager
def garbage_collected_afterwards() -> Iterator[None]:
    """Switch off Python's garbage collector in the `with` block; then collect once and give free memory to the system.

    For a cycle of the operator, which makes millions of objects and hardly any reference cycles: collections during it
    would take a fifth of its time. The collector is off for all threads: one that leaves reference cycles behind in
    that time must collect them itself, as `controller.handlers` does.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(1)  # the young generations; Python collects the oldest as usual
        return_free_memory()


def return_free_memory() -> None:
    """Return unused memory to the system: malloc's free pages, and the pages of the compiler's code.

    Loading compiled functions needs tens of MiB of compiler code, which is rarely used afterwards. Pages of it that are
    needed again are read from the library's file. See malloc_trim(3) and madvise(2).
    """
    if (library := _glibc()) is not None:
        library.malloc_trim(0)
        for begin, end in _compiler_code():
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _compiler_code() -> Iterator[tuple[int, int]]:
    """Yield the first address and the end address of each memory mapping of the compiler's code."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, permissions, *_, name = line.split()
            if permissions == _CODE and _COMPILER in name:
                begin, _, end = addresses.partition("-")
                yield int(begin, 16), int(end, 16)
