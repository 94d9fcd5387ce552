from flows.settings.compose import compose
from tasks.preflight_checks.hours import time_findings


def test_sft_is_told_beside_training_with_its_price(tmp_path):
    shown = [
        "preset=countdown-0.5b-sft-24gb",
        "resources.card=RTX 4090",
        f"storage.root={tmp_path}",
    ]
    (found,) = time_findings(compose([*shown, "sft.steps=40", "budget.price_per_hour=2"]))
    before, _, after = found.message.partition("; SFT of 40 steps before it: ")
    assert "steps of training" in before
    assert after.endswith("(a roofline)")
    assert "EUR" in after
    (without,) = time_findings(compose([*shown, "sft.data=null"]))
    assert "SFT" not in without.message
