"""What graphics cards can do at their best, and what the processor is fast at.

The table of cards is `cards.csv`. Not here: what one costs (`budget.price_per_hour`), nor what
share of this a run gets (`roofline.py`).

Sources: NVIDIA's data sheets, and its papers on Ampere GA102, Ada and RTX Blackwell (appendix A of
each). Tensor rates are dense (half of what a sheet with "sparsity" says) and with sums in float32
(on GeForce cards half of the rate with sums in float16); float32 rates are those of the plain
units, since torch does not use TF32 by default.
"""

import csv
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_NOISE: Final = frozenset(
    {
        "nvidia",
        "geforce",
        "tesla",
        "quadro",
        "rtx",
        "gpu",
        "graphics",
        "generation",
        "sxm",
        "sxm2",
        "sxm3",
        "sxm4",
        "sxm5",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
        "server",
        "workstation",
        "edition",
        "blackwell",
    }
)
"""Words of a device's name that do not distinguish cards of the table."""
_MEMORY: Final = re.compile(r"(?<![a-z0-9])(\d{2,3})\s*(?:gib|gb|g)?(?![a-z0-9])")


@dataclass(frozen=True)
class CardFigures:
    """One card at its peak."""

    name: str
    memory_gib: float
    bfloat16_tflops: float
    """10^12 operations per second; float32's if its tensor units do not support bfloat16."""
    float32_tflops: float
    bandwidth_gb_s: float
    """10^9 bytes per second, from the card's own memory."""

    def flops(self, dtype: str) -> float:
        """Returns operations per second in `bfloat16` or `float32`."""
        return 1e12 * (self.bfloat16_tflops if dtype == "bfloat16" else self.float32_tflops)


def _read_cards() -> Iterator[CardFigures]:
    with Path(__file__).with_name("cards.csv").open(encoding="ascii", newline="") as file:
        for row in csv.DictReader(file):
            name = row.pop("name")
            of_float32 = row["float32_tflops"]
            yield CardFigures(name, **{key: float(row[key] or of_float32) for key in row})


CARDS: Final = tuple(_read_cards())


def find_card(name: str, memory_gib: float | None = None) -> CardFigures | None:
    """Returns the card of a name as torch, nvidia-smi or a person writes it, None if unknown.

    `NVIDIA A100-SXM4-80GB`, `a100 80`, `4090`, ...; a laptop's card, another chip of the same name,
    is unknown. The device's `memory_gib` decides between cards of one name.
    """
    cards = _namesakes(name)
    in_name = _MEMORY.search(name.lower())
    size_gib = memory_gib or (float(in_name[1]) if in_name else None)
    if size_gib is not None:
        # A card of 24 GiB reports 23.5.
        cards = [card for card in cards if abs(size_gib / card.memory_gib - 1) <= 0.1]
    return cards[0] if len(cards) == 1 else None


def named_card(name: str) -> CardFigures:
    """Returns the card that a setting names; a ValueError says if none or several have the name."""
    card = find_card(name)
    if card is not None:
        return card
    several = [one.name for one in _namesakes(name)]
    if len(several) > 1:
        raise ValueError(f"resources.card={name} is {' or '.join(several)}: say which")
    names = {card.name.lower(): card.name for card in CARDS}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"resources.card={name} is not among the {len(CARDS)} cards whose figures are known: did "
        f"you mean {names[near]!r}? For another card set resources.gpu_memory_gib instead"
    )


def _namesakes(name: str) -> list[CardFigures]:
    words = _words(name)
    exact = [card for card in CARDS if _words(card.name) == words]
    # Only of the H100 is there a PCIe card with other figures.
    return exact or [card for card in CARDS if _words(card.name) == words - {"pcie"}]


def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", _MEMORY.sub(" ", name.lower()))
    return frozenset(re.sub(r"^(?:rtx|gtx)(?=\d)", "", word) for word in words) - _NOISE


@cache
def cpu_info() -> str:
    """Returns the first processor's part of /proc/cpuinfo."""
    return Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]


def has_fast_bfloat16() -> bool:
    """Returns whether this CPU multiplies bfloat16 faster than float32.

    CPUs with AMX do, and AMD's with AVX-512 BF16. On Intel's CPUs, AVX-512 BF16 has half of
    float32's speed, and a virtual machine may hide their AMX.
    """
    has_avx512_bf16 = "AuthenticAMD" in cpu_info() and "avx512_bf16" in cpu_info()
    return has_avx512_bf16 or "amx_bf16" in cpu_info()
