"""What the processor can do is read from Linux's own words."""

import pytest

from rl_core.config.run import RunConfig
from rl_core.system import cpu

AMD = "vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f"
INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: avx512f avx512_bf16"


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
    monkeypatch.setattr(cpu, "cpu_info", lambda: cpu_info)
    assert cpu.has_fast_bfloat16() is there
    auto = RunConfig.model_validate({"model": {"dtype": "auto"}})
    assert auto.compute_dtype == ("bfloat16" if there else "float32")
    on_a_card = {"model": {"dtype": "auto"}, "resources": {"learner_gpus": 0.5}}
    assert RunConfig.model_validate(on_a_card).compute_dtype == "bfloat16"
    assert RunConfig().compute_dtype == "float32"
