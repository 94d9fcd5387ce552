import stat

from tasks.queries.connection import connect


def test_what_a_question_spills_lies_in_a_folder_that_nobody_foresees_or_reads(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = set()
    for _ in range(2):
        with connect({}) as connection:
            (found,) = connection.sql("select current_setting('temp_directory')").fetchall()
            (folder,) = tmp_path.iterdir()
            assert found == (str(folder),)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            names.add(folder.name)
    assert len(names) == 2
    assert not list(tmp_path.iterdir())
