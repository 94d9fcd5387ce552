from tests.support.seeded_faults import ROOT, read_faults


def test_each_fault_changes_one_place_and_names_its_tests():
    faults = read_faults()
    assert len(faults) >= 40
    for fault in faults:
        assert (ROOT / fault["file"]).read_text().count(fault["old"]) == 1, fault["what"]
        assert fault["new"] != fault["old"]
        for test in fault["tests"]:
            assert (ROOT / test).exists(), fault["what"]
