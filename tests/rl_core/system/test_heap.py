from tests.support.programs import python

SCRIPT = """
import sys
from pathlib import Path

import numpy as np

from rl_core.system.heap import give_back_heap

def own_mib():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) // 1024

np.ones(2**23, np.uint8)  # freed: from now on glibc keeps blocks of such a size
before, num_blocks = own_mib(), int(sys.argv[1])
blocks = [np.ones(2**20, np.uint8) for _ in range(num_blocks)]
last = blocks.pop()  # above all others: without it the heap would shrink by itself
del blocks
kept = own_mib() - before
give_back_heap()
print(kept, own_mib() - before)
"""


def kept_before_and_after(num_blocks: int) -> tuple[int, int]:
    """MiB that a process still holds of so many freed blocks of one MiB."""
    kept, left = map(int, python(SCRIPT, num_blocks).stdout.split())
    return kept, left


def test_much_freed_memory_goes_back_to_the_machine_and_a_little_stays_for_the_next_step():
    kept, left = kept_before_and_after(600)
    assert kept > 500, "glibc keeps it: else there is nothing to do"
    assert left < 50
    kept, left = kept_before_and_after(100)
    assert left == kept > 80
