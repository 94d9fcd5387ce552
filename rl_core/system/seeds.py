"""Seeds derived from what they are for: results depend on neither order, batch nor machine."""

import hashlib
import json


def seed_of(*parts: int | str) -> int:
    """Returns a seed in [0, 2**63) that is the same on every machine: of run seed, step, prompt ...

    `hash()` is salted per process and sums of counters collide (1 + 2 = 2 + 1).
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
