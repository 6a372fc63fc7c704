"""Products by oneDNN: values and gradients are PyTorch's, and whatever isn't asked for stays PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgeswarm.model import matrix_products, small_images
from edgeswarm.model.export import export_model
from edgeswarm.model.matrix_products import ROWS_AT_ONCE, addmm, are_faster, linear, own_products
from edgeswarm.model.stage import StageModule

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),  # type: ignore[no-untyped-call]
    reason="this PyTorch has no oneDNN",
)
Product = Callable[..., torch.Tensor]


def compared(mine: Product, theirs: Product, *arguments: torch.Tensor | None, own: bool = True) -> None:
    """Results, and the gradients of whatever wants one. own: whether it is to be computed otherwise than PyTorch does."""
    outcomes: list[list[torch.Tensor | None]] = []
    for product in (mine, theirs):
        leaves = [None if each is None else each.detach().requires_grad_(each.requires_grad) for each in arguments]
        result = product(*leaves)
        if product is mine:
            assert (type(result.grad_fn).__name__ == "_LinearBackward") == own
        result.backward(torch.linspace(0.5, 1.5, result.numel()).view(result.shape))  # type: ignore[no-untyped-call]
        outcomes.append([result.detach(), *(None if leaf is None else leaf.grad for leaf in leaves)])
    for one, other in zip(*outcomes, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.shape == other.shape
            assert float((one - other).norm()) <= 1e-5 * float(other.norm())


wide = st.integers(64, 200)


@settings(deadline=None)
@given(
    shape=st.sampled_from([(96,), (5, 20), (2, 3, 16), (1, 96)]),
    inside=wide,
    outside=wide,
    wants=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    has_bias=st.booleans(),
)
def test_linear_is_that_of_torch(
    shape: tuple[int, ...], inside: int, outside: int, wants: tuple[bool, bool, bool], has_bias: bool
) -> None:
    if not any(wants[: 3 if has_bias else 2]):
        return
    values, weight, bias = torch.randn(*shape, inside), torch.randn(outside, inside), torch.randn(outside)
    for tensor, wanted in zip((values, weight, bias), wants, strict=True):
        tensor.requires_grad_(wanted)
    rows = values.numel() // inside
    compared(
        *(linear, nn.functional.linear, values, weight, bias if has_bias else None),
        own=rows * weight.numel() >= matrix_products._LEAST_WORK,
    )


def test_more_rows_than_are_taken_at_once() -> None:
    for rows in (ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE + 5):
        compared(
            *(linear, nn.functional.linear, torch.randn(rows, 33)),
            *(torch.randn(40, 33, requires_grad=True), torch.randn(40, requires_grad=True)),
        )


def test_values_that_dont_lie_row_by_row() -> None:
    values = torch.randn(64, 8, 80, requires_grad=True)
    weight = torch.randn(96, 80, requires_grad=True)
    compared(
        lambda v, w: linear(v.transpose(0, 1), w),
        lambda v, w: nn.functional.linear(v.transpose(0, 1), w),
        values,
        weight,
    )
    # A weight that lies the other way, and the gradient of a sum, which has no memory of its own.
    compared(lambda v, w: linear(v, w.t()), lambda v, w: nn.functional.linear(v, w.t()), values, weight.detach().t())
    summed = linear(values, weight).sum()
    summed.backward()  # type: ignore[no-untyped-call]
    expected = values.detach().sum((0, 1)).expand(96, 80)
    assert weight.grad is not None
    assert torch.allclose(weight.grad, expected, rtol=1e-4, atol=1e-3)


def test_addmm_is_that_of_torch() -> None:
    values = torch.randn(128, 64, requires_grad=True)
    weight, bias = torch.randn(64, 96, requires_grad=True), torch.randn(96, requires_grad=True)
    compared(addmm, torch.addmm, bias, values, weight)
    compared(addmm, torch.addmm, torch.randn(128, 96, requires_grad=True), values, weight, own=False)

    def scaled(product: Product) -> Product:
        return lambda *given: product(*given, beta=0.5, alpha=2.0)

    compared(scaled(addmm), scaled(torch.addmm), bias, values, weight, own=False)


def test_what_is_small_or_of_another_type_stays_as_it_was() -> None:
    small = torch.randn(4, 8, requires_grad=True)
    compared(linear, nn.functional.linear, small, torch.randn(3, 8), own=False)
    double = torch.randn(512, 64, dtype=torch.float64, requires_grad=True)
    compared(linear, nn.functional.linear, double, torch.randn(96, 64, dtype=torch.float64), own=False)
    compared(linear, nn.functional.linear, torch.randn(512, requires_grad=True), torch.randn(96, 512), own=False)
    assert linear(torch.randn(0, 64), torch.randn(96, 64)).shape == (0, 96)


@pytest.fixture
def processor(tmp_path: Path) -> Callable[[str], bool]:
    """What `are_faster` says beside a processor of this vendor, whose kernels are of this kind."""

    def says(vendor: str, kernels: str = "AVX512") -> bool:
        told = tmp_path / "cpuinfo"
        told.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: of a test\n")
        are_faster.cache_clear()
        with (
            mock.patch.object(matrix_products, "_PROCESSORS", told if vendor else tmp_path / "none"),
            mock.patch.object(torch.backends.cpu, "get_cpu_capability", return_value=kernels),
        ):
            try:
                return are_faster()
            finally:
                are_faster.cache_clear()

    return says


@pytest.mark.skipif(not torch._C.has_mkl, reason="this PyTorch has no MKL")
def test_they_are_faster_where_mkl_keeps_its_best_kernels_back(processor: Callable[..., bool]) -> None:
    assert processor("AuthenticAMD")
    assert not processor("GenuineIntel")
    assert not processor("")
    assert not processor("AuthenticAMD", "AVX2")


def test_a_stage_has_them_where_it_may_round_otherwise() -> None:
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64))
    graph = export_model(model, (torch.randn(4, 64),)).layer_graph
    stage = graph.stage(0, len(graph.layers))
    values = torch.randn(128, 64)
    with mock.patch.object(matrix_products, "are_faster", return_value=True):
        assert not own_products(torch.device("meta"))
        fast, plain = (StageModule(stage, dict(model.state_dict()), fast_layout=is_fast) for is_fast in (True, False))
    with mock.patch.object(matrix_products, "_product", side_effect=matrix_products._product) as product:
        (as_it_is,) = plain.forward(128, [values], draw=None)
        assert not product.called
        assert torch.equal(as_it_is, model(values))
        (found,) = fast.forward(128, [values], draw=None)
        assert product.call_count == 2
    assert torch.allclose(found, as_it_is, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("samples", "pixels", "kernel", "is_product"),
    [(4, 8, 1, True), (16, 8, 1, False), (64, 2, 1, True), (64, 3, 1, False), (4, 8, 3, False)],
)
def test_convolutions_of_single_pixels_are_products_where_these_are_faster(
    samples: int, pixels: int, kernel: int, is_product: bool
) -> None:
    image = torch.randn(samples, 64, pixels, pixels).to(memory_format=torch.channels_last)
    weight = torch.randn(96, 64, kernel, kernel).to(memory_format=torch.channels_last)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for faster in (True, False):
            with (
                mock.patch.object(small_images, "products_are_faster", return_value=faster),
                mock.patch.object(matrix_products, "_product", side_effect=matrix_products._product) as product,
            ):
                found = small_images.convolve(image, weight, None, 1, kernel // 2)
                assert product.called == (faster and is_product)
            expected = nn.functional.conv2d(image, weight, None, 1, kernel // 2)
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-3)
            assert found.is_contiguous(memory_format=torch.channels_last)
    finally:
        torch.set_num_threads(threads)
