"""Collectives by hand: bytes over bandwidth, and hops."""

from __future__ import annotations

import pytest

from rl_core.resources.collectives import Links

FOUR = Links(per_node=4, within=100.0, between=10.0)
"""Machines of four cards: 100 bytes per second within, 40 between, of which 0.8 is reached."""


def test_an_all_gather_within_a_machine_moves_what_others_hold() -> None:
    # Each of four cards receives three quarters of 800 bytes; three hops of 2 us.
    assert FOUR.all_gather(800, 4) == pytest.approx(600 / 80 + 3 * 2e-6)
    assert FOUR.reduce_scatter(800, 4) == FOUR.all_gather(800, 4)
    assert FOUR.all_reduce(800, 4) == pytest.approx(2 * (600 / 80 + 3 * 2e-6))


def test_between_machines_all_their_network_is_shared() -> None:
    # Seven eighths of 800 bytes enter each of two machines by 4 x 10; 6 near hops, 2 far.
    assert FOUR.all_gather(800, 8) == pytest.approx(700 / 32 + 6 * 2e-6 + 2 * 1e-5)


def test_a_broadcast_is_as_fast_as_its_slowest_link_for_however_many() -> None:
    assert FOUR.broadcast(800, 4) == pytest.approx(800 / 80 + 3 * 2e-6)
    assert FOUR.broadcast(800, 8) == pytest.approx(800 / 8 + 6 * 2e-6 + 1e-5)
    assert FOUR.broadcast(8e9, 1_024) == pytest.approx(FOUR.broadcast(8e9, 8), rel=1e-3)


def test_one_card_sends_nothing() -> None:
    for way in (FOUR.all_gather, FOUR.reduce_scatter, FOUR.all_reduce, FOUR.broadcast):
        assert way(800, 1) == 0.0
