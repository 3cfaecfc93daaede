"""Studies: small experiments on real digits, run where they are read."""

from __future__ import annotations

from accumkit.studies import curves, layers, norms, randomness, running

__all__ = ["curves", "layers", "norms", "randomness", "running"]
