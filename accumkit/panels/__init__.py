"""Panels: controls on figures, one small file a lesson; made of ipywidgets' core widgets only."""

from __future__ import annotations

from accumkit.panels.base import Answer, Panel, choice, show, slider
from accumkit.panels.one_update import one_update
from accumkit.panels.prediction import Prediction
from accumkit.panels.start_here import start_here

__all__ = ["Answer", "Panel", "Prediction", "choice", "one_update", "show", "slider", "start_here"]
