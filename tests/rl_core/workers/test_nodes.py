from dataclasses import replace

import pytest

from rl_core.workers.nodes import _look_around, _marked, refuse_other, software
from tests.support.harness import ROOT
from tests.support.programs import python
from tests.support.ray_head import environment_of_ray, ray_head


def test_another_version_of_the_project_is_refused_in_a_line():
    own = software()
    refuse_other(own, software(), "machine 10.0.0.2")
    other = replace(own, sources="0123456789ab", folder="/opt/old/rl_core")
    line = (
        rf"machine 10\.0\.0\.2 has another rl_core \(0123456789ab, in /opt/old/rl_core\) than this "
        rf"one \({own.sources}\): install the same version on all machines"
    )
    with pytest.raises(ValueError, match=line):
        refuse_other(own, other, "machine 10.0.0.2")


def test_a_folder_is_known_by_a_file_that_only_it_has(tmp_path, tiny_model_path):
    run = tmp_path / "run"
    run.mkdir()
    with _marked([run, tiny_model_path]) as marks:
        assert _look_around(marks) == (software(), [])
        (mark,) = run.iterdir()
        hidden = mark.rename(tmp_path / "hidden")
        assert _look_around(marks)[1] == [mark]
        hidden.rename(mark)
        model = tiny_model_path / "config.json"
        assert _look_around(marks | {model: marks[model] + 1})[1] == [model]
    assert list(run.iterdir()) == []


CHECKS = """
import sys
import ray
from rl_core.workers.nodes import check_nodes

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
check_nodes([node["NodeID"] for node in ray.nodes()], [])
"""


@pytest.mark.slow
def test_a_machine_that_cannot_load_the_project_is_named(tmp_path):
    broken = tmp_path / "node" / "rl_core"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not for this Python')")
    with ray_head(environment_of_ray(tmp_path, PYTHONPATH=str(broken.parent))) as address:
        env = environment_of_ray(tmp_path, PYTHONPATH=str(ROOT))
        # Ray's workers look for modules in the working folder first.
        done = python(CHECKS, address, env=env, cwd=tmp_path)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ValueError: Ray's machine 127.0.0.1 cannot load rl_core ("), done.stderr
    assert "not for this Python" in said
