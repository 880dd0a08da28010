"""Keeps the operator's memory small: collects garbage after each cycle and returns free memory to the system.

Only glibc's allocator is configured; with another C library, these functions only collect garbage.
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
    """Let all threads share two arenas, and return large blocks to the system when they are freed.

    By default each thread has its own arena, and both thresholds grow to the largest block ever freed: a cycle over
    thousands of resources then leaves hundreds of MiB allocated but unused (mallopt(3)).
    """
    if (library := _glibc()) is not None:
        library.mallopt(_ARENA_MAX, _ARENAS)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _LARGE_BYTES)


@contextmanager
def garbage_collected_afterwards() -> Iterator[None]:
    """Collect cyclic garbage after the block instead of during it, then return free memory to the system.

    A cycle makes millions of objects and hardly any cyclic garbage; collecting while it runs would take a fifth of its
    time. Other threads that make cyclic garbage meanwhile collect it themselves, as `controller.handlers` does.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(1)  # the young generations; Python collects the oldest as usual
        return_free_memory()


def return_free_memory() -> None:
    """Return the free pages of all arenas and the pages of the compiler's code (malloc_trim(3), madvise(2)).

    Loading compiled functions needs tens of MiB of compiler code, which is rarely used afterwards. Pages that are
    needed again are read from the library's file.
    """
    if (library := _glibc()) is not None:
        library.malloc_trim(0)
        for begin, end in _compiler_code():
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _compiler_code() -> Iterator[tuple[int, int]]:
    """Yield the begin and end address of each read-only mapping of the compiler's code."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, permissions, *_, name = line.split()
            if permissions == _CODE and _COMPILER in name:
                begin, _, end = addresses.partition("-")
                yield int(begin, 16), int(end, 16)
