from hypothesis import given
from hypothesis import strategies as st

from rl_core.system.seeds import seed_of

PART = st.one_of(st.integers(), st.text())


def test_golden_seeds():
    assert seed_of(0, 1, 2, 3) == 1667824973921948469
    assert seed_of("a") == 1417421833181456274


@given(st.lists(PART), st.lists(PART))
def test_seeds_differ_exactly_where_the_parts_do(a, b):
    assert (seed_of(*a) == seed_of(*b)) == (a == b)
    assert 0 <= seed_of(*a) < 2**63
