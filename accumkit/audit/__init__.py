"""The audit: from the trace of a loop to what is wrong with it, in words, with the line to change."""

from __future__ import annotations

from accumkit.audit.findings import Finding
from accumkit.audit.verdict import Verdict, audit

__all__ = ["Finding", "Verdict", "audit"]
