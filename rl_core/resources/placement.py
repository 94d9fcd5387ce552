"""Who asks for what, and who shares a card with whom: planned, later read off the actors.

Not here: Ray (cluster.py), bytes (memory_need.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Literal

from rl_core.config.run import RunConfig

LEARNER: Final = "learner"
_ALMOST: Final = 1e-4
"""Ray counts ten-thousandths of a card."""
_SETTINGS: Final = {
    "CPU": ("resources.rollout_threads", "resources.learner_threads"),
    "GPU": ("resources.rollout_gpus", "resources.learner_gpus"),
}
"""What decides how much is asked, beside the number of engines."""


def engine_name(number: int) -> str:
    """Returns the name of a rollout engine's process: of its log, in errors, in metrics."""
    return f"engine_{number}"


def learner_name(rank: int) -> str:
    """Returns the name of a learner rank's process; the first is called as one alone would be."""
    return f"{LEARNER}_{rank}" if rank else LEARNER


def card_tenants(config: RunConfig) -> list[list[str]]:
    """Returns for each card of one machine who computes on it, in the order of their start.

    As Ray places them: engines first, then the learner, a share of a card each on the fullest card
    that still has room for it, else on a new one. Who computes on the CPU is on none.
    """
    resources, rollout = config.resources, config.rollout
    per_engine = rollout.tensor_parallel_size * resources.rollout_gpus
    wanted = [(engine_name(i), per_engine) for i in range(rollout.num_engines)]
    # Ranks have a card each: for the plan of one, all are alike.
    wanted += [(LEARNER, resources.learner_gpus)] * resources.learner_ranks
    cards: list[tuple[float, list[str]]] = []  # (room left, tenants)
    for name, share in wanted:
        fitting = [i for i, (room, _) in enumerate(cards) if share <= room + _ALMOST]
        if 0 < share < 1 and fitting:
            fullest = min(fitting, key=lambda i: cards[i][0])
            room, tenants = cards[fullest]
            cards[fullest] = (room - share, [*tenants, name])
        else:
            cards += [(max(1.0 - share, 0.0), [name]) for _ in range(math.ceil(share))]
    return [tenants for _, tenants in cards]


def sequences_at_a_time(config: RunConfig) -> int:
    """Returns how many responses an engine of a training step can have under way."""
    num_rollouts = config.data.train_batch_size * config.algorithm.group_size
    return min(config.rollout.max_num_seqs, num_rollouts)


def asked_at_a_time(config: RunConfig) -> tuple[int, int]:
    """Returns the most responses that an engine has under way, and prompts: of a step or a test.

    A group's responses have one prompt, until they are turns of a talk.
    """
    data, size = config.data, config.algorithm.group_size
    tested = min(config.trainer.test_problems, data.test_size)

    def share(number: int) -> int:
        return min(config.rollout.max_num_seqs, -(-number // config.rollout.num_engines))

    num_rollouts, num_tests = share(data.train_batch_size * size), share(tested)
    num_seqs = max(num_rollouts, num_tests)
    if config.env.max_turns > 1:
        return num_seqs, num_seqs
    return num_seqs, max(-(-num_rollouts // size), num_tests)


def shares_a_card(config: RunConfig) -> bool:
    """Says whether the learner has an engine on its card."""
    return any(LEARNER in tenants and len(tenants) > 1 for tenants in card_tenants(config))


def broadcast_backend(config: RunConfig) -> Literal["gloo", "nccl", "ipc"]:
    """Returns how weights are broadcast: on the learner's card, between cards, or between CPUs."""
    if shares_a_card(config):
        return "ipc"
    on_cards = config.resources.learner_gpus > 0 and config.resources.rollout_gpus > 0
    return "nccl" if on_cards else "gloo"


def why_no_shared_card(config: RunConfig) -> str | None:
    """Returns which setting forbids that the learner has an engine on its card, None where none."""
    if not shares_a_card(config):
        return None
    rollout = config.rollout
    if rollout.weight_sync == "broadcast" and len(card_tenants(config)) > 1:
        return (
            "rollout.weight_sync=broadcast wants one card for all, or one for each, and learner "
            "and engines share some of several: use auto"
        )
    if late_engines(config):
        return (
            f"rollout.min_engines={rollout.min_engines} lets engines come later, and one on the "
            "learner's card must load before it: use null"
        )
    return None


def loading_queues(cards: Mapping[str, AbstractSet[tuple[str, str]]]) -> list[list[str]]:
    """Returns who loads after whom: each queue one by one, all queues at the same time.

    Whoever shares a card is in one queue: engines in their order, and learners last.

    vLLM (0.32, v1/worker/gpu_worker.py) looks at the whole card, not at its own process. At its
    start `gpu_memory_utilization` of the TOTAL memory must be free. What the card has lost between
    that look and the end of profiling counts as its own and leaves the KV cache: a learner that
    loads meanwhile costs the engine its cache, or the start ("No available memory for the cache
    blocks"). If the card has gained, because somebody gave memory back, an assertion ends it. So
    nobody else may load or free at that time. And engines go first: on the empty card the share is
    free however large, and from then on it stands, whatever the learner takes or returns. After a
    learner it would have to fit beside whatever loading has left in torch's cache.

    Args:
        cards: by process, the cards that it computes on, each as (machine, number on it).
    """
    queues: list[tuple[set[tuple[str, str]], list[str]]] = []
    # Stable: engines stay in order.
    for name in sorted(cards, key=_learns):
        own = set(cards[name])
        met = [queue for queue in queues if queue[0] & own]
        queues = [queue for queue in queues if not queue[0] & own]
        before = [tenant for _, tenants in met for tenant in tenants]
        queues.append((own.union(*(taken for taken, _ in met)), [*before, name]))
    return [tenants for _, tenants in queues]


def asked_of_ray(config: RunConfig, *, learner: bool) -> dict[str, dict[str, float]]:
    """Returns what each process asks of Ray, by name: CPUs, and GPUs where it wants any.

    Args:
        config: the run's settings.
        learner: whether there is one; an evaluation has engines alone.
    """
    resources, parts = config.resources, config.rollout.tensor_parallel_size
    # In one piece, so that all GPUs of an engine are of one machine.
    engine = _asked(parts * resources.rollout_threads, parts * resources.rollout_gpus)
    asked = {engine_name(i): engine for i in range(config.rollout.num_engines)}
    if learner:
        rank = _asked(resources.learner_threads, resources.learner_gpus)
        asked |= {learner_name(i): rank for i in range(resources.learner_ranks)}
    return asked


def late_engines(config: RunConfig) -> list[str]:
    """Returns the names of the engines that a run starts without, where they have no room."""
    rollout = config.rollout
    first = rollout.num_engines if rollout.min_engines is None else rollout.min_engines
    return [engine_name(i) for i in range(first, rollout.num_engines)]


def lacking(
    asked: Mapping[str, Mapping[str, float]], machines: Sequence[Mapping[str, float]]
) -> list[str]:
    """Returns of what all machines together have too little: `CPU`, `GPU`."""
    return [
        kind for kind in _SETTINGS if _sum(asked.values(), kind) > _sum(machines, kind) + _ALMOST
    ]


def too_little(
    asked: Mapping[str, Mapping[str, float]], machines: Sequence[Mapping[str, float]]
) -> str:
    """Returns in words what is asked, what there is, and what to do about it.

    Args:
        asked: by process, see `asked_of_ray`.
        machines: what each has, `CPU` and `GPU` among the names.
    """
    engines = [bundle for name, bundle in asked.items() if not _learns(name)]
    ranks = [bundle for name, bundle in asked.items() if _learns(name)]
    parts = [f"{_number(len(engines), 'engine')} of {_each(engines)}"]
    if ranks:
        learner = "learner" if len(ranks) == 1 else f"{len(ranks)} learner ranks"
        parts.append(f"{learner} of {_each(ranks)}")
    alike = Counter(in_words(machine) for machine in machines)
    there = " + ".join(f"{_number(n, 'machine')} of {has}" for has, n in alike.items())
    kinds = lacking(asked, machines) or _SETTINGS
    settings = [name for kind in kinds for name in _SETTINGS[kind]]
    counts = ["rollout.num_engines", "resources.learner_ranks"][: 1 + (len(ranks) > 1)]
    return (
        f"{' + '.join(parts)} are asked of Ray, which has {there or 'no machine'}: lower "
        f"{', '.join(counts)}, {' or '.join(settings)}, or give it more (resources.ray_address)"
    )


def in_words(bundle: Mapping[str, float]) -> str:
    """Returns CPUs and GPUs in words: `2 CPUs and 1 GPU`."""
    return " and ".join(_number(bundle.get(kind, 0), kind) for kind in _SETTINGS)


def _learns(name: str) -> bool:
    return name.startswith(LEARNER)


def _each(bundles: Sequence[Mapping[str, float]]) -> str:
    """Returns what each of some that are alike asks, in words."""
    return in_words(bundles[0]) + " each" * (len(bundles) > 1)


def _asked(num_cpus: int, num_gpus: float) -> dict[str, float]:
    return {"CPU": num_cpus} | ({"GPU": num_gpus} if num_gpus else {})


def _sum(bundles: Iterable[Mapping[str, float]], kind: str) -> float:
    return sum(bundle.get(kind, 0) for bundle in bundles)


def _number(count: float, what: str) -> str:
    return f"{count:g} {what}{'' if count == 1 else 's'}"
