"""The stamp passes its input on and tells when it was computed."""

from __future__ import annotations

import mlx.core as mx

from pomona import _ops


def test_the_value_is_unchanged_and_the_moment_comes_with_it() -> None:
    x = mx.arange(6).reshape(2, 3)
    moment = _ops.Moment()
    before = _ops.Moment.now()
    y = _ops.stamp(x + 1, moment)
    assert moment.seconds == 0
    assert y.tolist() == [[1, 2, 3], [4, 5, 6]]
    mx.synchronize()
    assert before <= moment.seconds <= _ops.Moment.now()


def test_moments_follow_the_order_of_computation() -> None:
    moments = [_ops.Moment() for _ in range(5)]
    x = mx.ones(4)
    for moment in moments:
        x = _ops.stamp(mx.exp(-x), moment)
    mx.eval(x)
    mx.synchronize()
    times = [moment.seconds for moment in moments]
    assert times == sorted(times)
    assert times[0] > 0
