import pytest
import torch

from rl_core.models import matmul as products


@pytest.fixture(params=["mkl", "onednn"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setattr(products, "prefers_onednn", lambda: name == "onednn")
    return name


@pytest.mark.usefixtures("library")
def test_both_libraries_multiply_tensors_of_any_strides():
    left, right = torch.randn(5, 7), torch.randn(4, 7)
    expected = (left.double() @ right.double().T).float()
    for one in (left, left.T.contiguous().T, torch.randn(5, 9)[:, :7].copy_(left)):
        for other in (right, right.T.contiguous().T):
            torch.testing.assert_close(products.product(one, other), expected)
    left, right = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, -6.0]])
    assert products.product(left, right).tolist() == [[11.0, -7.0]]


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bfloat16_is_multiplied_in_float32_where_that_is_faster(monkeypatch, native, dtype):
    monkeypatch.setattr(products, "has_fast_bfloat16", lambda: native)
    rounded = torch.randn(3, 3).bfloat16()
    operand = products.product_operand(rounded)
    assert operand.dtype == dtype
    assert torch.equal(operand.float(), rounded.float())
    assert products.product_operand(rounded.float()).dtype == torch.float32


@pytest.mark.parametrize(
    ("cpu_info", "onednn"),
    [
        ("vendor_id\t: AuthenticAMD\nflags\t\t: avx2 avx512f", True),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: avx2 fma", False),
        ("vendor_id\t: GenuineIntel\nflags\t\t: avx512f avx512_bf16 amx_bf16", False),
        ("", False),
    ],
)
def test_the_cpu_decides(monkeypatch, cpu_info, onednn):
    monkeypatch.setattr(products, "cpu_info", lambda: cpu_info)
    products.prefers_onednn.cache_clear()
    assert products.prefers_onednn() is onednn
    products.prefers_onednn.cache_clear()
