"""Panels: controls on figures, one small file a lesson; made of ipywidgets' core widgets only."""

from __future__ import annotations

from accumkit.panels.base import Answer, Panel, choice, show, slider
from accumkit.panels.curves import norm_curves
from accumkit.panels.norms import norms
from accumkit.panels.one_update import one_update
from accumkit.panels.pitfalls import PitfallPanel, pitfalls
from accumkit.panels.precision import call_order, low_sums
from accumkit.panels.prediction import Prediction
from accumkit.panels.projector import projector
from accumkit.panels.quiz import QuizPanel, quiz
from accumkit.panels.start_here import start_here

__all__ = [
    "Answer",
    "Panel",
    "PitfallPanel",
    "Prediction",
    "QuizPanel",
    "call_order",
    "choice",
    "low_sums",
    "norm_curves",
    "norms",
    "one_update",
    "pitfalls",
    "projector",
    "quiz",
    "show",
    "slider",
    "start_here",
]
