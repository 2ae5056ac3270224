"""The catalogue of cards: figures against the datasheets, and finding a card by any usual spelling."""

from __future__ import annotations

import pytest

from engine.errors import UsageError
from engine.hardware import catalogue


@pytest.mark.parametrize(
    ("name", "memory", "bf16", "fp8", "bandwidth", "nvlink", "capability"),
    [
        ("NVIDIA H100 80GB HBM3", 80, 989.4, 1978.9, 3350, 900, "9.0"),
        ("NVIDIA H200", 141, 989.4, 1978.9, 4800, 900, "9.0"),
        ("NVIDIA B200", 180, 2250, 4500, 8000, 1800, "10.0"),
        ("NVIDIA B300 SXM6 AC", 288, 2250, 4500, 8000, 1800, "10.3"),
        ("NVIDIA A100-SXM4-80GB", 80, 312, None, 2039, 600, "8.0"),
        ("NVIDIA L4", 24, 121, 242.5, 300, None, "8.9"),
        ("NVIDIA L40S", 48, 362, 733, 864, None, "8.9"),
        ("NVIDIA A40", 48, 149.7, None, 696, 112.5, "8.6"),
        ("NVIDIA GeForce RTX 4090", 24, 165.2, 330.3, 1008, None, "8.9"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, 480, 960, 1597, None, "12.0"),
        ("Tesla T4", 16, None, None, 320, None, "7.5"),
        ("AMD Instinct MI300X", 192, 1307.4, 2614.9, 5300, 896, "gfx942"),
        ("AMD Instinct MI355X", 288, 2516.6, 5033.2, 8000, 1075, "gfx950"),
    ],
)
def test_figures_of_the_datasheets(
    name: str, memory: float, bf16: float | None, fp8: float | None, bandwidth: float, nvlink: float | None,
    capability: str,
) -> None:  # fmt: skip
    card = catalogue.lookup(name)
    assert card is not None
    assert card.memory_bytes == memory * 10**9
    assert (card.bf16_tflops, card.fp8_tflops) == (bf16, fp8)
    assert (card.bandwidth_gb_s, card.nvlink_gb_s, card.capability) == (bandwidth, nvlink, capability)


def test_every_card_is_whole_and_dense() -> None:
    """A figure with sparsity slipped in among dense ones breaks the ratio of FP8 to BF16 or the rate per watt."""
    assert len({card.id for card in catalogue.cards()}) == len(catalogue.cards())
    for card in catalogue.cards():
        assert card.source and card.arch, card.id
        assert card.memory_gb > 0 and card.bandwidth_gb_s >= 300 and card.power_w >= 70
        if card.fp8_tflops is not None:
            assert card.bf16_tflops is not None
            assert card.fp8_tflops / card.bf16_tflops == pytest.approx(2, rel=0.03), card.id
        assert card.fp16_tflops / card.power_w < 2.6, card.id
        if card.reported_bytes is not None:
            assert 0.95 < card.reported_bytes / card.memory_bytes < 1.08, card.id


def test_each_driver_name_finds_its_own_card() -> None:
    names = [(name, card) for card in catalogue.cards() for name in card.names]
    assert len({name for name, _card in names}) == len(names)
    for name, card in names:
        assert catalogue.lookup(name) is card
        assert catalogue.lookup(card.id) is card


@pytest.mark.parametrize(
    ("spelling", "found"),
    [
        ("H100", "H100-SXM"),
        ("h100 80gb", "H100-SXM"),
        ("H100 PCIe", "H100-PCIe"),
        ("rtx4090", "RTX-4090"),
        ("GeForce RTX 4090", "RTX-4090"),
        ("A100", "A100-SXM-80"),
        ("A100-40GB", "A100-SXM-40"),
        ("rtx pro 6000", "RTX-PRO-6000-Server"),
        ("L4", "L4"),
        ("L40", "L40"),
        ("V100", "V100-SXM-32"),
        ("mi300x", "MI300X"),
    ],
)
def test_loose_spellings(spelling: str, found: str) -> None:
    card = catalogue.lookup(spelling)
    assert card is not None and card.id == found


def test_a_mig_instance_and_nonsense_are_no_cards() -> None:
    assert catalogue.lookup("NVIDIA A100-SXM4-80GB MIG 3g.40gb") is None
    assert catalogue.lookup("") is None
    assert catalogue.lookup("H900") is None


@pytest.mark.parametrize(
    ("text", "count", "card"),
    [
        ("8xH200", 8, "H200-SXM"),
        (" 2 x rtx 4090 ", 2, "RTX-4090"),
        ("4× RTX PRO 6000", 4, "RTX-PRO-6000-Server"),
        ("H100x8", 8, "H100-SXM"),
        ("8xMI300X", 8, "MI300X"),
        ("MI300Xx8", 8, "MI300X"),
        ("L4", 1, "L4"),
        ("RTX 4090", 1, "RTX-4090"),
    ],
)
def test_servers(text: str, count: int, card: str) -> None:
    found = catalogue.parse_server(text)
    assert (found[0], found[1].id) == (count, card)


@pytest.mark.parametrize("text", ["", "x", "8x", "8xH900", "0xH100", "99999xH100", "x" * 10_000, "-1xH100"])
def test_a_bad_server_is_one_clear_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalogue.parse_server(text)
    assert caught.value.fix and len(caught.value.what) < 200


def test_the_nearest_cards_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        catalogue.parse_server("8xH20")
    assert "H200" in (caught.value.fix or "")
