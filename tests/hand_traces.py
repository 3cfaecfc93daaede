"""Traces made by hand, for tests of what is drawn and said about them."""

from __future__ import annotations

from accumkit.trace.record import Event, MicroBatch, Trace, Update


def trace_of(windows, steps=3, lost=(), unit="examples", precision="float64", events=True, epochs=None) -> Trace:
    """Return a trace of windows, each a list of (count, weight) or (count, weight, fate); weight None: not measured."""
    trace = Trace(steps, unit=unit, precision=precision)
    index = 0
    for number, window in enumerate(windows):
        epoch = epochs[number] if epochs else 0
        entries = [(*entry, "kept")[:3] for entry in window]
        total = sum(count for count, _, fate in entries if fate != "leaked") or 1
        micros = []
        for count, weight, fate in entries:
            fair = count / total
            share = None if weight is None else weight * fair
            micros.append(MicroBatch(index, epoch - (fate == "leaked"), int(count), count, share, fair, fate, "t.py:4"))
            trace.events += [Event(kind, index, "t.py:4") for kind in ("batch", "forward", "backward")]
            index += 1
        trace.events += [Event("step", index - 1, "t.py:6"), Event("zero_grad", index - 1, "t.py:7")]
        trace.updates.append(Update(number, epoch, tuple(micros), total))
    for count in lost:
        trace.lost.append(MicroBatch(index, 0, count, count, 0.0, 1 / max(len(lost), 1), "lost", "t.py:4"))
        trace.events += [Event(kind, index, "t.py:4") for kind in ("batch", "forward", "backward")]
        index += 1
    if not events:
        trace.events.clear()
    return trace


RIGHT = trace_of([[(4, 1), (4, 1), (4, 1)], [(4, 1), (3, 1)]])
MISSING = trace_of([[(4, 3), (4, 3), (4, 3)], [(4, 7 / 4), (3, 7 / 3)]])
TAIL = trace_of([[(4, 1), (4, 1), (4, 1)], [(4, 7 / 12), (3, 7 / 9)]])
DROPPED = trace_of([[(4, 1), (4, 1), (4, 1)]], lost=(4, 3))
LEAKED = trace_of(
    [
        [(4, 1), (4, 1), (4, 1)],
        [(4, 1.5, "leaked"), (3, 1.5, "leaked"), (4, 0.5), (4, 0.5), (4, 0.5)],
        [(4, 1), (3, 1)],
    ],
    epochs=[0, 1, 1],
)
ERASED = trace_of([[(4, 0, "erased"), (4, 0, "erased"), (4, 1)], [(4, 0, "erased"), (3, 1)]])
TINY = trace_of([[(4, 2e-5), (4, 2e-5), (4, 2e-5)], [(4, 2e-5), (3, 2e-5)]])
HUGE = trace_of([[(4, 65536), (4, 65536), (4, 65536)], [(4, 3), (3, 0.00002)]])
UNMEASURED = trace_of([[(4, None), (4, None), (4, None)], [(4, None), (3, None)]])
NARROW = trace_of([[(8, 1 if i % 2 else 1.25) for i in range(16)], [(8, 1)] * 16, [(8, 1)] * 5], steps=16)
SUMMED = trace_of([[(8, 0.9 + 0.01 * (i % 20)) for i in range(32)], [(8, 1)] * 32, [(8, 1)] * 16], steps=32)
MANY = trace_of([[(4, 1)] * 4 for _ in range(299)] + [[(4, 0.5), (3, 0.5)]], steps=4)
TOKENS = trace_of([[(310, 0.7), (120, 1.4), (212, 1.02), (0, 0)], [(44, 1), (180, 1)]], unit="tokens")
NEGATIVE = trace_of([[(4, 1), (4, -0.6), (4, 1)]])
NOTHING = Trace(4)
ALL_KINDS = trace_of(
    [[(4, 1), (4, 2), (4, 0, "erased")], [(4, 1.2, "leaked"), (4, 1), (4, None), (0, 0)], [(3, 90)]],
    lost=(4, 4), epochs=[0, 1, 1],
)  # fmt: skip
