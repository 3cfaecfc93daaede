"""Rooms without internet: one folder that holds all the course needs, and installs itself from there."""

from __future__ import annotations

from accumkit.offline.folder import Filled, check, fill
from accumkit.offline.platforms import PLATFORMS, Platform, platform

__all__ = ["PLATFORMS", "Filled", "Platform", "check", "fill", "platform"]
