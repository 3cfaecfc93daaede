"""Pitfalls: every way to get accumulation wrong, run for real beside the right loop."""

from __future__ import annotations

from accumkit.pitfalls.catalog import CATALOG
from accumkit.pitfalls.composing import compatible
from accumkit.pitfalls.pitfall import FAMILIES, Pitfall
from accumkit.pitfalls.simulation import Outcome, Simulation
from accumkit.pitfalls.simulator import simulate, warm_up

__all__ = ["CATALOG", "FAMILIES", "Outcome", "Pitfall", "Simulation", "compatible", "simulate", "warm_up"]
