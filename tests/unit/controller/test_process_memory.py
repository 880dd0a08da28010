"""What large cycles leave behind goes back to the machine."""

import gc
import subprocess
import sys
import weakref

import pytest

from controller.process_memory import _glibc, garbage_collected_afterwards

HELD = """
import ctypes
from pathlib import Path
from controller.process_memory import return_free_memory, configure_malloc

def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
configure_malloc()
blocks = [libc.malloc(64 * 1024) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 64 * 1024)
for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
    libc.free(block)
before = resident_kib()
return_free_memory()
print(before - resident_kib())
"""


@pytest.mark.skipif(_glibc() is None, reason="needs glibc")
def test_memory_that_was_freed_goes_back_to_the_machine() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)

    assert int(done.stdout) > 50 * 1024


COMPILER = """
import re
from pathlib import Path
from controller.process_memory import return_free_memory
from numba import njit

def resident_kib():
    maps = re.split(r"\\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    return sum(int(re.search(r"Rss: +([0-9]+)", each)[1]) for each in maps if "libllvmlite" in each)

one = njit(lambda x: x + 1)
assert one(1) == 2
before = resident_kib()
return_free_memory()
print(before - resident_kib())
two = njit(lambda x: x + 2)
assert one(1) == 2 and two(1) == 3 and one(1.5) == 2.5
"""


@pytest.mark.skipif(_glibc() is None, reason="needs glibc")
def test_the_compiler_is_given_back_and_works_when_it_is_called_again() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILER], capture_output=True, text=True, check=True)

    assert int(done.stdout) > 20 * 1024


class _Knot:
    def __init__(self) -> None:
        self.self = self


def _cycle_that_fails() -> None:
    with garbage_collected_afterwards():
        knots = [weakref.ref(_Knot()) for _ in range(3000)]  # more than would be collected by themselves
        assert all(knot() is not None for knot in knots)
        raise RuntimeError(knots)


def test_garbage_is_looked_for_after_a_cycle_even_one_that_fails() -> None:
    with pytest.raises(RuntimeError) as failed:
        _cycle_that_fails()
    assert gc.isenabled()
    assert all(knot() is None for knot in failed.value.args[0])
