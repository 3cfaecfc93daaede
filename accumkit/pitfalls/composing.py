"""Which right loop a set of pitfalls is put into, and whether they can be put into one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from itertools import combinations

from accumkit.objective import AccumkitError
from accumkit.pitfalls.bases import BASES, Base
from accumkit.pitfalls.catalog import CATALOG
from accumkit.pitfalls.patching import apply
from accumkit.pitfalls.pitfall import Patch, Pitfall

_ONE_LEFT = (  # what cannot show where a window has only one micro-batch left
    "mean-of-means", "token-weighting", "class-weighting", "repeated-auxiliary-loss", "clip-every-micro-batch",
    "scale-changed-in-window", "skipped-micro-batch", "batchnorm-statistics", "batchnorm-momentum", "coupled-examples",
    "dropout-masks", "low-precision-sum", "validation-erases",
)  # fmt: skip
_DIVISORS = ("missing-division", "double-division", "tail-divisor")
# By slug: faults that cannot be told beside it, though their lines differ, since it leaves too little of them to see.
HIDES = {
    "step-every-micro-batch": (
        *_ONE_LEFT, *_DIVISORS, "zero-every-micro-batch", "scheduler-every-micro-batch", "ema-every-micro-batch",
        "horizon-in-micro-batches", "skipped-update",
    ),
    "zero-every-micro-batch": (*_ONE_LEFT, *_DIVISORS, "stale-gradients", "tail-leaked"),
    "stale-gradients": ("tail-leaked",),
    "off-by-one": ("tail-divisor",),
    "missing-division": ("skipped-micro-batch",),  # no divisor is left to count it
    "validation-erases": ("tail-leaked", "stale-gradients"),  # it clears what they leave
    "skipped-update": ("stale-gradients",),  # what is not finite stays, so every later step is skipped as well
    "tail-dropped": ("tail-divisor",),
    "tail-leaked": ("tail-divisor",),
    "scheduler-every-micro-batch": ("horizon-in-micro-batches",),  # together they are right
    "empty-micro-batch": tuple(CATALOG),  # a NaN hides all
    "missing-scaler-update": tuple(CATALOG),  # nothing is trained
}  # fmt: skip


def named(what: str | Iterable[str]) -> tuple[Pitfall, ...]:
    """Return the pitfalls of one slug or several.

    Raises
    ------
    AccumkitError
        A slug is unknown, or none is given.
    """
    slugs = [what] if isinstance(what, str) else list(what)
    if not slugs:
        raise AccumkitError(f"no pitfall was named; give a slug, such as {next(iter(CATALOG))!r}, or a list of them")
    for slug in slugs:
        if slug not in CATALOG:
            near = difflib.get_close_matches(str(slug), CATALOG, 3, 0.5)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(CATALOG)}"
            raise AccumkitError(f"there is no pitfall {slug!r}; {hint}")
    return tuple(CATALOG[slug] for slug in dict.fromkeys(slugs))


def compositions(pitfalls: tuple[Pitfall, ...]) -> Iterator[tuple[Base, str]]:
    """Yield every right loop that the pitfalls can be put into, with the wrong loop's source, preferred ones first.

    Raises
    ------
    AccumkitError
        There is none.
    """
    for a, b in combinations(pitfalls, 2):
        for one, other in ((a, b), (b, a)):
            if other.slug in HIDES.get(one.slug, ()):
                raise AccumkitError(f"{one.slug} leaves nothing of {other.slug} to see; simulate them one at a time")
    problems = []
    bases = dict.fromkeys(name for pitfall in pitfalls for name in pitfall.patches)
    found = False
    for name in bases:
        base = BASES[name]
        try:
            patch = [change for pitfall in pitfalls for change in _patch_on(pitfall, base)]
            source = apply(base.source, patch, f"the {name} loop")
        except AccumkitError as error:
            problems.append(error)
            continue
        found = True
        yield base, source
    if not found:
        slugs = " and ".join(pitfall.slug for pitfall in pitfalls)
        raise AccumkitError(f"{slugs} cannot be put into one loop: {problems[-1]}") from problems[-1]


def compatible(a: str, b: str) -> bool:
    """Say whether two pitfalls can be simulated together, both with something to see.

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> pitfalls.compatible("missing-division", "scheduler-every-micro-batch")
    True
    >>> pitfalls.compatible("tail-dropped", "tail-leaked")
    False
    """
    pair = named((a, b))
    if len(pair) < 2:
        return False
    try:
        return next(compositions(pair)) is not None
    except AccumkitError:
        return False


def _patch_on(pitfall: Pitfall, base: Base) -> Patch:
    """Return a pitfall's change to a loop: its own one for it, or that of the plain loop, whose lines others have."""
    patch = pitfall.patches.get(base.name) or pitfall.patches.get("plain")
    if patch is None:
        raise AccumkitError(f"{pitfall.slug} is no change of the {base.name} loop")
    return patch
