"""What graphics cards can do at their best: memory, arithmetic, bandwidth of memory and link.

Not what one costs, which the user knows better (`budget.price_per_hour`), nor what share of this a
run gets (`roofline.py`).

Sources: NVIDIA's data sheets and architecture papers of each card. Tensor rates are dense (half of
what a sheet with "sparsity" says) and with sums in float32 (on GeForce cards half of the other);
float32 is that of the plain units, since torch does not use TF32 unless told to.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

_NOISE: Final = frozenset(
    {
        *("nvidia", "geforce", "tesla", "quadro", "rtx", "gpu", "graphics", "generation"),
        *("sxm", "sxm2", "sxm3", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"),
        *("server", "workstation", "edition", "blackwell"),
    }
)
"""Words of a device's name that tell no two cards of the table apart."""
_MEMORY: Final = re.compile(r"(?<![a-z0-9])(\d{2,3})\s*(?:gib|gb|g)?(?![a-z0-9])")
_SAME_MEMORY: Final = 0.1
"""A card shows a little less memory than its name says: 23.5 GiB of 24."""


@dataclass(frozen=True)
class CardFigures:
    """One card at its peak."""

    name: str
    memory_gib: float
    bfloat16_tflops: float | None
    """10^12 operations per second; None where its tensor units do not know the type."""
    float32_tflops: float
    bandwidth_gb_s: float
    """10^9 bytes per second, from the card's own memory."""
    link_gb_s: float
    """10^9 bytes per second that it sends to others of its machine: NVLink, else 16 lanes of PCIe.

    Half of a sheet's NVLink figure, which adds up both directions; bridges between pairs of cards
    are not counted.
    """

    @property
    def network_gb_s(self) -> float:
        """10^9 bytes per second between machines, a card's share, as such machines usually have.

        NVIDIA's own have 400 Gbit/s for each card since Hopper and 200 before it; of cards on PCIe
        eight are taken to share 100.
        """
        gbit = 400.0 if self.link_gb_s >= 450 else 200.0 if self.link_gb_s >= 150 else 12.5
        return gbit / 8

    def flops(self, dtype: str) -> float:
        """Returns operations per second in `bfloat16` or `float32`."""
        tflops = self.bfloat16_tflops if dtype == "bfloat16" else None
        return 1e12 * (self.float32_tflops if tflops is None else tflops)


CARDS: Final = tuple(
    CardFigures(*figures)
    for figures in (
        # name, GiB, bfloat16 and float32 TFLOP/s, GB/s of memory, of the link
        ("RTX 3090", 24, 71.0, 35.6, 936, 31.5),  # Ampere GA102 paper, appendix A
        ("RTX 3090 Ti", 24, 80.0, 40.0, 1008, 31.5),
        ("RTX 4080", 16, 97.5, 48.7, 717, 31.5),  # Ada paper, appendix A
        ("RTX 4090", 24, 165.2, 82.6, 1008, 31.5),
        ("RTX 5080", 16, 112.6, 56.3, 960, 63),  # RTX Blackwell paper, appendix A
        ("RTX 5090", 32, 209.5, 104.8, 1792, 63),
        ("RTX A5000", 24, 111.1, 27.8, 768, 31.5),
        ("RTX A6000", 48, 154.8, 38.7, 768, 31.5),
        ("RTX 6000 Ada", 48, 364.2, 91.1, 960, 31.5),
        ("RTX PRO 6000", 96, 503.8, 126.0, 1792, 63),
        ("T4", 16, None, 8.1, 320, 15.8),
        ("V100 16GB", 16, None, 15.7, 900, 150),
        ("V100 32GB", 32, None, 15.7, 900, 150),
        ("A10", 24, 125.0, 31.2, 600, 31.5),
        ("A10G", 24, 70.0, 31.5, 600, 31.5),
        ("A30", 24, 165.0, 10.3, 933, 31.5),
        ("A40", 48, 149.7, 37.4, 696, 31.5),
        ("A100 40GB", 40, 312.0, 19.5, 1555, 300),
        ("A100 80GB", 80, 312.0, 19.5, 2039, 300),
        ("L4", 24, 121.0, 30.3, 300, 31.5),
        ("L40", 48, 181.0, 90.5, 864, 31.5),
        ("L40S", 48, 362.0, 91.6, 864, 31.5),
        ("H20", 96, 148.0, 44.0, 4000, 450),
        ("H100", 80, 989.0, 67.0, 3350, 450),
        ("H100 PCIe", 80, 756.0, 51.0, 2000, 63),
        ("H100 NVL", 94, 835.0, 60.0, 3938, 63),
        ("GH200", 96, 989.0, 67.0, 4000, 450),
        ("H200", 141, 989.0, 67.0, 4800, 450),
        ("B200", 180, 2250.0, 75.0, 7700, 900),
        ("GB200", 186, 2500.0, 80.0, 8000, 900),
    )
)


def find_card(name: str, memory_gib: float | None = None) -> CardFigures | None:
    """Returns the card of a name as torch, nvidia-smi or a person says it, None for an unknown one.

    Args:
        name: `NVIDIA A100-SXM4-80GB`, `a100 80`, `RTX 4090`, `4090`, ...; a laptop's card, which
            has the name of another, is unknown.
        memory_gib: what the device says it has; tells cards apart that have one name.
    """
    found = _namesakes(name)
    said = _MEMORY.search(name.lower())
    wanted = memory_gib or (float(said[1]) if said else None)
    if wanted is not None:
        found = [card for card in found if _is_about(wanted, card.memory_gib)]
    return found[0] if len(found) == 1 else None


def named_card(name: str) -> CardFigures:
    """Returns the card that a setting names.

    Raises:
        ValueError: it is unknown, or several have that name.
    """
    card = find_card(name)
    if card is not None:
        return card
    several = [found.name for found in _namesakes(name)]
    if len(several) > 1:
        raise ValueError(f"resources.card={name} is {' or '.join(several)}: say which")
    names = {card.name.lower(): card.name for card in CARDS}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"resources.card={name} is not among the {len(CARDS)} cards whose figures are known: did "
        f"you mean {names[near]!r}? For another card set resources.gpu_memory_gib instead"
    )


def cards_of(memory_gib: float) -> list[CardFigures]:
    """Returns all cards with about so much memory, the fastest memory first."""
    fitting = [card for card in CARDS if _is_about(memory_gib, card.memory_gib)]
    return sorted(fitting, key=lambda card: -card.bandwidth_gb_s)


def _namesakes(name: str) -> list[CardFigures]:
    words = _words(name)
    exact = [card for card in CARDS if _words(card.name) == words]
    # PCIe tells H100s apart, and no others.
    return exact or [card for card in CARDS if _words(card.name) == words - {"pcie"}]


def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", _MEMORY.sub(" ", name.lower()))
    joined = (re.sub(r"^(?:rtx|gtx)(?=\d)", "", word) for word in words)
    return frozenset(joined) - _NOISE


def _is_about(wanted: float, memory_gib: float) -> bool:
    return abs(wanted - memory_gib) <= _SAME_MEMORY * memory_gib
