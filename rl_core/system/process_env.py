"""Environment of every process of a run: quiet libraries, no telemetry, bounded threads.

Set before torch, vLLM, Ray or Prefect are imported: `apply_defaults` by the process that starts a
run, `process_environment` by each Ray actor for itself. Code that starts a process passes
`environment_of_child`, which holds only the credentials that the process needs.
"""

import atexit
import gc
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal

from rl_core.system.network import spare_loopback

_DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "GOMP_SPINCOUNT": "0",  # a thread that spins for its partner costs tenfold on a busy machine
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # oneDNN keeps the code of every product that it has prepared, torch another such list in each
    # thread, 1,024 entries each: one per shape, and rollouts are ragged. Memory would grow by tens
    # of MB per step. Measured: benchmarks, memory over a night.
    "LRU_CACHE_CAPACITY": "16",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "MODELSCOPE_LOG_LEVEL": "CRITICAL",  # what it reports in ten lines, we say in one
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray's head would keep a record of each call, 45 kB per step, which nothing reads.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 starves a run if anything else runs on the machine
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",  # on a CPU it warns in twenty lines of nothing to act on
    "WANDB_SILENT": "true",
}
_SEARCHED: Final = {"PATH": os.defpath, "LD_LIBRARY_PATH": str(Path(__file__).parent)}
"""Where children find programs and libraries, and a harmless place if there is no other.

An empty or relative place is the working folder. OpenCV, which vLLM imports, adds an empty one to
an LD_LIBRARY_PATH that is not set: then `lscpu` loaded libraries of the working folder.
"""
_COMPILED: Final = "countdown-train/torchinductor"
"""Torch's own place for code that it compiles has a known name in /tmp: another user may own it."""
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Torch's settings of a card's memory: of these variables it reads the first that is set."""

Need = Literal["prefect", "ray", "wandb"]
"""Servers at which a child logs in. Only this process does at hubs, stores and webhooks."""
_NEEDED: Final[dict[Need, re.Pattern[str]]] = {
    "prefect": re.compile("PREFECT_"),
    "ray": re.compile("RAY_"),
    "wandb": re.compile("WANDB_|(?i:https?|all)_(?i:proxy)$"),
}
_SECRET: Final = (
    r"((API|ACCESS|ACCOUNT|SECRET|SHARED|PRIVATE)_?KEYS?|(ACCESS|API|AUTH)_?TOKENS|TOKEN|SECRETS?"
    r"|PASSWORDS?|PASSWD|PASSPHRASE|CREDENTIALS?|AUTH_STRING|CONNECTION_?STRING|CONN_?STR"
    r"|WEBHOOK(_?UR[LI])?|HOOK_UR[LI]|BEARER|COOKIES?"
    r"|(^|_)(PASS|PAT|AUTH|DSN|JWT|SAS|SIG)|_PWD|_(?<!PUBLIC_)KEYS?)(_?\d+)?"
)
"""What a secret's name ends with: one list for children and for `redact`."""
_IS_SECRET: Final = re.compile(f"{_SECRET}$")
_LEADS_TO_ONE: Final = re.compile(
    rf"{_SECRET}(_|$)|(^|_)(KEYS?|CONNECTION)(_|$)"
    # Also the clouds' variables that say where a credential is.
    r"|^(AWS|AZURE|GOOGLE|GCLOUD|CLOUDSDK|GCS|S3|R2|ALIBABA|OSS|OCI|DIGITALOCEAN)_"
    r"|^(PGPASSFILE|PGSERVICEFILE|KUBECONFIG|NETRC|SSH_AUTH_SOCK)$"
)
_lent: dict[str, str] = {}


@cache
def is_secret_name(name: str) -> bool:
    """Returns whether a variable of this name holds a secret: HF_TOKEN, SMTP_PASS, WEBHOOK_URL."""
    return _IS_SECRET.search(name.upper()) is not None


def is_credential(name: str, value: str) -> bool:
    """Returns whether an environment variable holds a secret, or leads to one."""
    return bool(_LEADS_TO_ONE.search(name.upper()) or re.search(r"://\S*@", value))


def environment_of_child(*needs: Need) -> dict[str, str]:
    """Returns our environment for a process that we start, with only the credentials of `needs`."""
    harmless = {k: v for k, v in all_variables().items() if not is_credential(k, v)}
    # Neither the child nor what it starts imports a module of the working folder.
    return harmless | credentials_for(*needs) | {"PYTHONSAFEPATH": "1"}


def all_variables() -> dict[str, str]:
    """Returns this process's environment and the credentials that it borrowed."""
    return {**_lent, **os.environ}


def credentials_for(*needs: Need, names: Collection[str] = ()) -> dict[str, str]:
    """Returns the credentials of `needs`, and variables by name, for a child to pass on."""
    kept = [_NEEDED[need] for need in needs]
    return {
        name: value
        for name, value in all_variables().items()
        if name in names or (is_credential(name, value) and any(g.match(name) for g in kept))
    }


def borrow(credentials: Mapping[str, str]) -> None:
    """Keeps credentials that children of this process may get, outside its own environment."""
    _lent.update(credentials)


def process_environment(*, num_threads: int, on_gpu: bool, sleeps: bool = False) -> dict[str, str]:
    """Returns the variables of one process that runs torch or vLLM, besides the defaults.

    Segments of a card's memory do not grow for a vLLM engine that `sleeps`: torch refuses its
    memory pool of its own (pytorch/pytorch#147851).
    """
    variables = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "1",  # the model is a local folder
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
    }
    if not on_gpu:
        variables["TORCH_COMPILE_DISABLE"] = "1"
        # vLLM would give each process of a split engine a memory node of its own, or refuse.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    elif not sleeps and not any(os.environ.get(name) for name in _ALLOCATOR):
        # Ragged batches leave holes in segments of fixed size: memory ends before it is full.
        variables[_ALLOCATOR[0]] = "expandable_segments:True" + _exact_pinned_memory()
    return variables


def _exact_pinned_memory() -> str:
    """Returns what keeps torch from rounding pinned memory up to a power of two.

    Rounded up, a snapshot of 5.5 GiB took 10.4 GiB. torch before 2.13 refuses this setting.
    """
    from rl_core.system.versions import version_of

    version = [int(part) for part in re.findall(r"\d+", version_of("torch") or "")]
    return ",pinned_max_round_threshold_mb:1" if version >= [2, 13] else ""


def apply_defaults() -> None:
    """Sets the defaults in this process, without overriding what the user set."""
    spare_loopback()
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name, default in _SEARCHED.items():
        places = [p for p in os.environ.get(name, "").split(os.pathsep) if p.startswith("/")]
        os.environ[name] = os.pathsep.join(places or [default])
    with suppress(OSError, RuntimeError):  # a user without a home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _COMPILED
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def hide_cuda_only_packages() -> None:
    """With torch+cpu, hides packages for cards from transformers, torch and vLLM.

    torchvision has no CPU build for this torch: a CUDA build with torch+cpu breaks `import vllm`.
    triton, which vLLM brings along, takes 70 MB of each process that imports transformers' models.
    """
    from rl_core.system.versions import version_of  # not at the start of every command: it is slow

    if not (version_of("torch") or "").endswith("+cpu"):
        return
    for package in ("torchvision", "torchaudio", "torchcodec", "triton"):
        if not (version_of(package) or "+cpu").endswith("+cpu"):
            sys.modules.setdefault(package, None)  # type: ignore[arg-type]  # None blocks imports


@contextmanager
def importing() -> Iterator[None]:
    """Imports without the garbage collector, which never again looks at what is there by the end.

    It would look at all modules again and again: a quarter of the CPU time of importing vLLM.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else nanobind's modules call what is left a leak
        gc.enable()


@contextmanager
def without_torch() -> Iterator[None]:
    """Hides torch from transformers, whose tokenizers do without; not if one of them is loaded.

    With torch `AutoTokenizer` loads the code of all models, 3 s of CPU time and 350 MB. Later this
    process may import torch, but transformers stays without it and loads no model.
    """
    hides = sys.modules.keys().isdisjoint({"torch", "transformers"})
    if hides:
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would warn that torch is missing
        sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        yield
    finally:
        if hides:
            del sys.modules["torch"]
