import gc
import os
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from rl_core.system import process_env, versions
from rl_core.system.process_env import (
    apply_defaults,
    borrow,
    credentials_for,
    environment_of_child,
    importing,
    is_credential,
    process_environment,
)
from rl_core.system.redaction import redact
from tests.support.programs import python

TABLES = yaml.safe_load(Path(__file__).with_name("environment.yaml").read_text())


@pytest.mark.parametrize(("name", "value"), TABLES["secrets"].items())
def test_what_looks_like_a_secret_reaches_no_child(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert is_credential(name, value)
    assert name not in environment_of_child()


@pytest.mark.parametrize(("name", "value"), TABLES["needed"].items())
def test_what_a_process_needs_for_its_work_stays(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert environment_of_child()[name] == value


def test_a_child_gets_the_credentials_that_it_needs_and_no_others(monkeypatch):
    monkeypatch.setattr(process_env, "_lent", {})
    secrets = {"WANDB_API_KEY": "w", "RAY_AUTH_TOKEN": "r", "PREFECT_API_KEY": "p", "HF_TOKEN": "h"}
    secrets["HTTPS_PROXY"] = "http://me:word@proxy:3128"
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)

    def given(*needs: process_env.Need) -> set[str]:
        return environment_of_child(*needs).keys() & secrets.keys()

    assert given() == set()
    assert given("wandb") == {"WANDB_API_KEY", "HTTPS_PROXY"}
    assert given("ray") == {"RAY_AUTH_TOKEN"}
    assert given("prefect", "ray") == {"PREFECT_API_KEY", "RAY_AUTH_TOKEN"}
    assert environment_of_child()["PYTHONSAFEPATH"] == "1"

    lent = credentials_for("wandb")
    assert lent == {"WANDB_API_KEY": "w", "HTTPS_PROXY": secrets["HTTPS_PROXY"]}
    for name in secrets:  # as in a child that needs none itself
        monkeypatch.delenv(name)
    borrow(lent)
    assert "WANDB_API_KEY" not in os.environ
    assert given() == set()
    assert given("wandb") == {"WANDB_API_KEY", "HTTPS_PROXY"}
    assert redact("said: 0123456789") == "said: 0123456789"
    borrow({"WANDB_API_KEY": "0123456789"})
    assert credentials_for(names=("WANDB_API_KEY", "NOT_SET")) == {"WANDB_API_KEY": "0123456789"}
    assert redact("said: 0123456789") == "said: ***"


def test_only_a_process_on_a_gpu_compiles_and_none_asks_the_hub():
    variables = process_environment(num_threads=3, on_gpu=False)
    named = ("OMP_NUM_THREADS", "TORCH_COMPILE_DISABLE", "HF_HUB_OFFLINE")
    assert [variables[name] for name in named] == ["3", "1", "1"]
    # vLLM would take this legacy variable in place of rollout.kv_cache_mib.
    assert "VLLM_CPU_KVCACHE_SPACE" not in variables
    variables = process_environment(num_threads=1, on_gpu=True)
    assert "TORCH_COMPILE_DISABLE" not in variables
    assert variables["HF_HUB_OFFLINE"] == "1"


def test_segments_grow_on_a_card_where_vllm_allows_it(monkeypatch):
    def allocator(*, on_gpu: bool = True, sleeps: bool = False) -> dict[str, str]:
        variables = process_environment(num_threads=1, on_gpu=on_gpu, sleeps=sleeps)
        return {name: value for name, value in variables.items() if "ALLOC_CONF" in name}

    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    # The name that torch 2.13 asks for first: beside it the older ones are not looked at.
    grows, exact = "expandable_segments:True", ",pinned_max_round_threshold_mb:1"
    assert allocator() == {"PYTORCH_ALLOC_CONF": grows + exact}
    assert allocator(on_gpu=False) == {}
    assert allocator(sleeps=True) == {}
    with monkeypatch.context() as patch:  # torch before 2.13 ends at a word that it does not know
        patch.setattr(versions, "version_of", {"torch": "2.11.0+cu130"}.get)
        assert allocator() == {"PYTORCH_ALLOC_CONF": grows}
        patch.setattr(versions, "version_of", {"torch": "3.0rc1"}.get)
        assert allocator() == {"PYTORCH_ALLOC_CONF": grows + exact}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert allocator() == {}


def test_what_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("DO_NOT_TRACK", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    apply_defaults()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["GOMP_SPINCOUNT"] == "0"  # idle threads sleep, in every process


_WHO_TAKES_THEM = {
    "command line": "import flows.cli.main; flows.cli.main.apply_defaults()",
    "watched child": "import tasks.supervision.child",
    "actor": "import rl_core.workers.actors as a; a.prepare_process({}, Path('log.txt'))",
    "flow under a worker": "import flows.countdown_train",
    "evaluation under a worker": "import flows.evaluate",
}


@pytest.mark.parametrize("who", _WHO_TAKES_THEM)
def test_every_kind_of_process_bounds_the_caches_before_torch(who, tmp_path):
    bounds = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "out = os.dup(1)\n"
        "def tell():\n"
        f"    os.write(out, ' '.join(os.environ.get(name, 'none') for name in {bounds}).encode())\n"
        "    os._exit(0)\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('torch', 'prefect'): tell()\n"  # and no later
        "sys.meta_path.insert(0, Watch())\n"
        f"{_WHO_TAKES_THEM[who]}\n"
        "tell()\n"
    )
    env = {n: v for n, v in os.environ.items() if n not in bounds}
    done = python(program, cwd=tmp_path, env=env, more={"PYTHONPATH": str(Path.cwd())})
    assert done.stdout == "64 16", done.stderr


@pytest.mark.skipif("+cpu" not in (versions.version_of("torch") or ""), reason="torch for cards")
def test_beside_a_torch_for_cpus_no_process_loads_what_is_for_cards():
    done = python(
        "import sys\n"
        "from rl_core.system.process_env import hide_cuda_only_packages\n"
        "hide_cuda_only_packages()\n"
        "import transformers.models.qwen2.modeling_qwen2\n"
        "print([name for name in ('triton', 'torchvision') if sys.modules.get(name)], end='')\n"
    )
    assert done.stdout == "[]", done.stderr


SEARCHED = """
import os
from rl_core.system.process_env import apply_defaults
apply_defaults()
try:
    import cv2  # vLLM imports it, and it changes LD_LIBRARY_PATH
except ImportError:
    pass
for name in ("PATH", "LD_LIBRARY_PATH"):
    print(name, os.environ[name])
print("cache", os.environ["TORCHINDUCTOR_CACHE_DIR"])
"""


@pytest.mark.parametrize("given", ["", ":", "lib:/usr/lib:", "/usr/lib::./lib", ".:/usr/lib"])
def test_children_find_no_program_and_no_library_in_the_working_folder(given, tmp_path):
    """ATTACK: an empty or relative element of these variables is the working folder."""
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME")
    }
    env |= {"PATH": f"{given}:{env['PATH']}", "LD_LIBRARY_PATH": given, "HOME": str(tmp_path)}
    done = python(SEARCHED, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    for places in found.values():
        assert all(place.startswith("/") for place in places.split(":")), found
    assert ("/usr/lib" in found["LD_LIBRARY_PATH"].split(":")) == ("/usr/lib" in given)
    assert found["cache"] == f"{tmp_path}/.cache/countdown-train/torchinductor"  # not in /tmp


def test_the_collector_rests_during_imports_and_never_looks_at_them_again():
    frozen = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
    with pytest.raises(ModuleNotFoundError), importing():
        import_module("no_such_module")
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
    gc.unfreeze()
