"""Mixed precision: the order of four calls, overflow and skipped steps, and sums held in low precision."""

from __future__ import annotations

from accumkit.studies.precision.calls import CALLS, Moment, Order, Orders, Passed, orders, run_order
from accumkit.studies.precision.clips import WAYS, Clip, Clips, clipping
from accumkit.studies.precision.lowsums import AT, Sum, Sums, Types, bytes_of, sticks, sums, types
from accumkit.studies.precision.problem import PRECISIONS
from accumkit.studies.precision.skips import Overflow, Search, Several, overflow, search, several

__all__ = [
    "AT",
    "CALLS",
    "PRECISIONS",
    "WAYS",
    "Clip",
    "Clips",
    "Moment",
    "Order",
    "Orders",
    "Overflow",
    "Passed",
    "Search",
    "Several",
    "Sum",
    "Sums",
    "Types",
    "bytes_of",
    "clipping",
    "orders",
    "overflow",
    "run_order",
    "search",
    "several",
    "sticks",
    "sums",
    "types",
]
