import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from rl_core.system.seeds import seed_of

PART = st.one_of(st.integers(), st.text())


def test_golden_seeds():
    assert seed_of(0, 1, 2, 3) == 1667824973921948469
    assert seed_of("a") == 1417421833181456274


def test_the_same_in_a_process_with_another_hash_seed():
    code = "from rl_core.system.seeds import seed_of; print(seed_of('run', 7, 3))"
    environment = {"PYTHONHASHSEED": "123"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert int(printed) == seed_of("run", 7, 3)


@given(st.lists(PART), st.lists(PART))
def test_seeds_differ_exactly_where_the_parts_do(a, b):
    assert (seed_of(*a) == seed_of(*b)) == (a == b)
    assert 0 <= seed_of(*a) < 2**63


def test_a_number_is_not_its_text_and_order_counts():
    assert len({seed_of(1, 2), seed_of(2, 1), seed_of("1", 2), seed_of(12), seed_of(0, 3)}) == 5
