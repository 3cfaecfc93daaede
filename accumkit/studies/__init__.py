"""Studies: small experiments on real digits, run where they are read."""

from __future__ import annotations

from accumkit.studies import curves, layers, norms, precision, randomness, running

__all__ = ["curves", "layers", "norms", "precision", "randomness", "running"]
