"""Every rule of the audit, in the order in which findings are told: boundaries first, for they explain weights."""

from __future__ import annotations

from accumkit.audit.coupling import batchnorm_momentum, batchnorm_statistics, coupled_examples, dropout_masks
from accumkit.audit.ends import (
    off_by_one,
    stale_gradients,
    step_every_micro_batch,
    tail_dropped,
    tail_leaked,
    zero_every_micro_batch,
)
from accumkit.audit.evaluation import validation_erases
from accumkit.audit.findings import Finding
from accumkit.audit.graphs import graph_kept
from accumkit.audit.horizon import horizon_in_micro_batches
from accumkit.audit.missing import empty_micro_batch, skipped_micro_batch
from accumkit.audit.nested import nested_accumulation
from accumkit.audit.precision import clip_before_unscale, clip_every_micro_batch, low_precision_sum
from accumkit.audit.reading import Case
from accumkit.audit.reuse import data_reused
from accumkit.audit.scale import double_division, missing_division, tail_divisor
from accumkit.audit.scalers import missing_scaler_update, scale_changed_in_window, skipped_update
from accumkit.audit.schedule import ema_every_micro_batch, scheduler_every_micro_batch
from accumkit.audit.terms import repeated_auxiliary_loss
from accumkit.audit.weighting import class_weighting, mean_of_means, token_weighting

RULES = (
    step_every_micro_batch,
    zero_every_micro_batch,
    validation_erases,
    stale_gradients,
    off_by_one,
    nested_accumulation,
    tail_leaked,
    tail_dropped,
    data_reused,
    empty_micro_batch,
    missing_division,
    double_division,
    tail_divisor,
    mean_of_means,
    token_weighting,
    class_weighting,
    skipped_micro_batch,
    repeated_auxiliary_loss,
    scheduler_every_micro_batch,
    ema_every_micro_batch,
    horizon_in_micro_batches,
    batchnorm_statistics,
    batchnorm_momentum,
    coupled_examples,
    dropout_masks,
    clip_before_unscale,
    clip_every_micro_batch,
    scale_changed_in_window,
    missing_scaler_update,
    skipped_update,
    low_precision_sum,
    graph_kept,
)


def findings_of(case: Case) -> tuple[Finding, ...]:
    """Return what every rule finds."""
    return tuple(finding for rule in RULES if (finding := rule(case)))
