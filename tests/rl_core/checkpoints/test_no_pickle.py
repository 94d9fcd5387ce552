"""Nothing that lies in a checkpoint, a model's folder or a settings file is ever executed."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.errors import BadInputError
from flows.runs.lookup import settings_of_run
from flows.runs.run_record import choose_run
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.rollout.hf_engine import HfEngine
from tests.support.runs import new_run, run_config

PICKLED = (
    *("pytorch_model.bin", "adapter_model.bin", "model.pt", "training_args.bin", "optimizer.pt"),
    *("scheduler.pt", "rng_state.pth", "trainer/learner.pt", "trainer/learner.pkl"),
)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._proof),)


@pytest.fixture
def config() -> RunConfig:
    return run_config(
        data={"max_prompt_length": 64, "max_response_length": 16},
        rollout={"kv_cache_mib": 16, "max_num_seqs": 4},
        resources={"learner_threads": 1},
    )


def load_engine(config: RunConfig, folder: Path) -> None:
    HfEngine(folder, dtype=config.compute_dtype, max_num_seqs=8, on_gpu=False)


def plant(folder: Path, proof: Path) -> None:
    for name in PICKLED:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(pickle.dumps(Payload(proof)))


def test_pickles_beside_the_safetensors_of_a_checkpoint_are_not_loaded(
    tmp_path, tiny_model_path, config
):
    proof, folder = tmp_path / "proof", tmp_path / "checkpoint"
    Learner(config, tiny_model_path).save(folder)
    plant(folder, proof)
    Learner(config, tiny_model_path, resume_from=folder)
    load_engine(config, folder)
    assert not proof.exists()
    pickle.loads((folder / "model.pt").read_bytes())
    assert proof.exists(), "the payload works"


@pytest.mark.slow
def test_nor_by_vllm(tmp_path, tiny_model_path, config):
    proof, folder = tmp_path / "proof", tmp_path / "checkpoint"
    shutil.copytree(tiny_model_path, folder)
    plant(folder, proof)
    code = """
import sys
from pathlib import Path
from rl_core.system.process_env import apply_defaults, hide_cuda_only_packages, process_environment
import os
os.environ.update(process_environment(num_threads=1, on_gpu=False))
apply_defaults()
hide_cuda_only_packages()
from rl_core.config.run import RunConfig
from rl_core.rollout.vllm_engine import VllmEngine
VllmEngine(RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), 8)
"""
    subprocess.run([sys.executable, "-c", code, config.model_dump_json(), str(folder)], check=True)
    assert not proof.exists()


def test_a_checkpoint_whose_weights_are_a_pickle_is_refused(tmp_path, tiny_model_path, config):
    proof, folder = tmp_path / "proof", tmp_path / "checkpoint"
    shutil.copytree(tiny_model_path, folder)
    plant(folder, proof)
    (folder / "model.safetensors").unlink()
    for load in (load_engine, Learner):
        with pytest.raises((ValueError, OSError), match="safetensors"):
            load(config, folder)
    # ... even under the right name.
    (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(proof)))
    for load in (load_engine, Learner):
        with pytest.raises(Exception, match=r"(?i)header|safetensors"):
            load(config, folder)
    assert not proof.exists()


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir ['{proof}']",
        "run_id: !!python/object/apply:os.mkdir ['{proof}']",
        "storage: {{root: !!python/object/new:os.mkdir ['{proof}']}}",
    ],
)
def test_settings_files_hold_settings_and_no_code(tmp_path, text):
    proof = tmp_path / "proof"
    poisoned = text.format(proof=proof)
    run = new_run(tmp_path)
    run.update(status="interrupted")
    (run.path / "config.yaml").write_text(poisoned)
    with pytest.raises((BadInputError, yaml.YAMLError)):
        settings_of_run(run)
    assert run.price_of(60.0) is None
    chosen = choose_run(run_config(storage={"root": tmp_path}), None)
    assert chosen.run_id != "r"
    assert not proof.exists()
    yaml.unsafe_load(poisoned)
    assert proof.exists()
