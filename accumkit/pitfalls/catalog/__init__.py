"""Every pitfall, by its slug, family by family."""

from __future__ import annotations

from types import MappingProxyType

from accumkit.pitfalls.catalog.boundary import BOUNDARY
from accumkit.pitfalls.catalog.coupling import COUPLING
from accumkit.pitfalls.catalog.mixed_precision import MIXED_PRECISION
from accumkit.pitfalls.catalog.scale import SCALE
from accumkit.pitfalls.catalog.schedule import SCHEDULE
from accumkit.pitfalls.catalog.single import SINGLE
from accumkit.pitfalls.catalog.weighting import WEIGHTING

CATALOG = MappingProxyType(
    {p.slug: p for p in (*SCALE, *BOUNDARY, *WEIGHTING, *MIXED_PRECISION, *SCHEDULE, *COUPLING, *SINGLE)}
)
