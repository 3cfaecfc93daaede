"""Studies: small experiments on real digits, run where they are read."""

from __future__ import annotations

from accumkit.studies import norms

__all__ = ["norms"]
