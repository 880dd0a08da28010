"""Memory between cycles: garbage is looked for, and what a large cycle took is given back.

Of the C library's allocators only glibc's is told anything; others are left alone.
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


def hold_little() -> None:
    """Share few arenas among all threads, and give what is large back when it is freed.

    By default each thread fills an arena of its own, and both thresholds grow to the largest block ever freed: a cycle
    over thousands of resources then leaves hundreds of MiB behind that nobody uses (mallopt(3)).
    """
    if (library := _glibc()) is not None:
        library.mallopt(_ARENA_MAX, _ARENAS)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _LARGE_BYTES)


@contextmanager
def tidied_afterwards() -> Iterator[None]:
    """Look for cyclic garbage after this instead of again and again within, then give free memory back.

    A cycle makes millions of objects and hardly any garbage that counting does not find: looking for it while it runs
    would take a fifth of its time. Who makes more meanwhile looks for it, as `controller.handlers` does.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(1)  # what is new; the old is looked through now and then, as ever
        give_back()


def give_back() -> None:
    """Return the free pages of all arenas, and the pages of the compiler's code (malloc_trim(3), madvise(2)).

    To load compiled functions takes the compiler, tens of MiB of it, and nothing does so again. What is called after
    all comes back from its file, page by page.
    """
    if (library := _glibc()) is not None:
        library.malloc_trim(0)
        for begin, end in _compiler_code():
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _compiler_code() -> Iterator[tuple[int, int]]:
    """Yield where the compiler's code is mapped: only what nobody can write to, so that its file has all of it."""
    with suppress(FileNotFoundError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, permissions, *_, name = line.split()
            if permissions == _CODE and _COMPILER in name:
                begin, _, end = addresses.partition("-")
                yield int(begin, 16), int(end, 16)
