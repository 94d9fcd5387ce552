import pytest

from tests.support.chaos import Ledger, Survived, as_table


def faults(ledger: Ledger) -> list[Survived]:
    return [Survived(*noted) for _, noted in ledger.properties]


def test_a_row_per_kind_with_its_sums_and_places_and_the_tests_that_failed():
    ledger = Ledger()
    ledger("SIGKILL", "the learner", steps_lost=2)
    ledger("ENOSPC", "a save")
    ledger("SIGKILL", "the learner", steps_lost=1)
    ledger("SIGKILL", "an engine")
    assert as_table(faults(ledger), ["tests/test_a.py::test_b"]) == [
        "fault                 injected  survived  steps redone  data lost",
        "SIGKILL                      3         3             3          0",
        "    the learner x 2",
        "    an engine",
        "ENOSPC                       1         1             0          0",
        "    a save",
        "all                          5         4             3          0",
        "NOT survived: tests/test_a.py::test_b",
    ]


def test_lost_data_is_never_survived():
    ledger = Ledger()
    with pytest.raises(AssertionError, match="OOM at ref cost 3 rows or checkpoints"):
        ledger("OOM", "ref", rows_lost=3)
    assert faults(ledger) == []
