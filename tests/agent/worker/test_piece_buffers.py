from __future__ import annotations

from edgeswarm_agent.worker.piece_buffers import PieceBuffers


def test_what_was_reserved_is_used_again() -> None:
    pieces = PieceBuffers()
    pieces.reserve(100, 2)
    first, second = pieces.take(100), pieces.take(7)
    assert first.numel() == second.numel() == 100
    pieces.give_back(first)
    assert pieces.take(50) is first


def test_where_all_are_out_one_is_made_and_not_kept() -> None:
    pieces = PieceBuffers()
    pieces.reserve(100, 1)
    reserved, made = pieces.take(10), pieces.take(10)
    assert made.numel() == 10
    pieces.give_back(made)
    pieces.give_back(reserved)
    assert pieces.take(5) is reserved
    assert pieces.take(5) is not made


def test_in_the_end_none_is_kept() -> None:
    pieces = PieceBuffers()
    pieces.reserve(100, 2)
    out = pieces.take(100)
    pieces.end()
    pieces.give_back(out)
    assert pieces.take(5).numel() == 5


def test_one_that_is_too_small_stays() -> None:
    pieces = PieceBuffers()
    pieces.reserve(100, 1)
    assert pieces.take(101).numel() == 101
    assert pieces.take(100).numel() == 100
