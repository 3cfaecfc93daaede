"""The names of the notebooks that teach pitfalls."""

from __future__ import annotations

WEIGHTS = "02_what_each_example_weighs"
BOUNDARY = "03_where_an_update_ends"
NORMS = "04_batchnorm_and_groupnorm"
AMP = "05_mixed_precision_and_clipping"
