import pytest

from rl_core.config.run import RunConfig
from rl_core.system import devices
from rl_core.system.devices import CARDS, find_card, has_fast_bfloat16, named_card

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: avx512f avx512_bf16"


@pytest.mark.parametrize(
    ("name", "memory_gib", "card"),
    [
        ("NVIDIA GeForce RTX 4090", 23.5, "RTX 4090"),
        ("NVIDIA GeForce RTX 3090 Ti", 23.7, "RTX 3090 Ti"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "A100 80GB"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100"),
        ("NVIDIA H100 PCIe", 79.1, "H100 PCIe"),
        ("NVIDIA A10G", 22.1, "A10G"),
        ("Tesla V100-SXM2-32GB", 31.7, "V100 32GB"),
        ("NVIDIA RTX 6000 Ada Generation", 47.4, "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.0, "RTX PRO 6000"),
        # Another chip under the same name.
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7, None),
        ("NVIDIA GeForce RTX 4090 D", 23.5, None),
        ("Radeon RX 7900 XTX", 24.0, None),
    ],
)
def test_a_device_is_recognised(name, memory_gib, card):
    found = find_card(name, memory_gib)
    assert (found.name if found else None) == card


@pytest.mark.parametrize(
    ("name", "card"),
    [
        *(("4090", "RTX 4090"), ("rtx4090", "RTX 4090"), ("RTX-4090", "RTX 4090")),
        *(("a100 80", "A100 80GB"), ("A100-40G", "A100 40GB"), ("h100 pcie", "H100 PCIe")),
        *((card.name, card.name) for card in CARDS),
    ],
)
def test_a_person_names_a_card(name, card):
    assert named_card(name).name == card


def test_an_unclear_name_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^resources\.card=A100 is A100 40GB or A100 80GB: say"):
        named_card("A100")
    with pytest.raises(ValueError, match=r"did you mean 'RTX 4090'\? .* resources\.gpu_memory_gib"):
        named_card("RTX 4091")


def test_a_card_s_rates_depend_on_the_type():
    card = named_card("RTX 4090")
    assert (card.flops("bfloat16"), card.flops("float32")) == (165.2e12, 82.6e12)
    assert named_card("T4").flops("bfloat16") == 8.1e12  # its tensor units do not know it


@pytest.mark.parametrize(
    ("cpu_info", "there"),
    [
        (AMD, False),
        (f"{AMD} avx512_bf16", True),
        (INTEL, False),  # 84 GFLOP/s, and 159 in float32
        (f"{INTEL} amx_bf16", True),
        ("", False),
    ],
)
def test_bfloat16_is_taken_where_it_is_faster_than_float32(monkeypatch, cpu_info, there):
    monkeypatch.setattr(devices, "cpu_info", lambda: cpu_info)
    assert has_fast_bfloat16() is there
    auto = RunConfig.model_validate({"model": {"dtype": "auto"}})
    assert auto.compute_dtype == ("bfloat16" if there else "float32")
    on_a_card = {"model": {"dtype": "auto"}, "resources": {"learner_gpus": 0.5}}
    assert RunConfig.model_validate(on_a_card).compute_dtype == "bfloat16"
    assert RunConfig().compute_dtype == "float32"
