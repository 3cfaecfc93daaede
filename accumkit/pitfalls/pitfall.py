"""What the catalog holds of each pitfall."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from accumkit.audit.findings import AFFECTS, row
from accumkit.objective import AccumkitError
from accumkit.pitfalls.plan import Plan

Patch = tuple[tuple[str, str], ...]  # (old line, new text), as patching.py reads them

FAMILIES = ("scale", "boundary", "weighting", "clipping and AMP", "schedule", "coupling", "precision", "data", "memory")


@dataclass(frozen=True, repr=False)
class Pitfall:
    """A way to get accumulation wrong: the right loop with a line or two changed, and what there is to say about it.

    Parameters
    ----------
    slug : str
        Its name, such as "missing-division".
    title : str
        The fault in a few words.
    family : str
        One of FAMILIES.
    patches : mapping from str to patch
        By the name of the right loop that is changed: (old line, new text) pairs. The first one is preferred; another
        is used where the first one's loop would not be right for the data at hand.
    symptom : str
        What one notices.
    why : str
        What goes wrong.
    fix : str
        What to change.
    lesson : str or None
        The notebook that teaches it.
    seen_by : str
        What an audit needs to see it: "events", "objective", "a GPU" ...
    report : str
        A public report of it, "owner/repo#number".
    affects : str
        "gradient" or "update" (the updates are not those of the big batch), "cost" or "record" (they are).
    hidden : callable
        ``hidden(plan)``: why it cannot show on this data with these settings, a sentence; None where it shows.
    implies : tuple of str
        Slugs of faults that its code has as well, always or on some data.
    unequal : bool
        By default on micro-batches of unequal size.
    epochs : int
        Passes that it needs to show.

    Raises
    ------
    AccumkitError
        ``family`` or ``affects`` is none of those, or there is no patch.

    Examples
    --------
    >>> from accumkit.pitfalls import CATALOG
    >>> pitfall = CATALOG["missing-division"]
    >>> pitfall.title, pitfall.base
    ('the division is missing', 'mean')
    >>> pitfall.patch
    (('loss = F.cross_entropy(model(images), labels) / k', 'loss = F.cross_entropy(model(images), labels)'),)
    """

    slug: str
    title: str
    family: str
    patches: Mapping[str, Patch]
    symptom: str
    why: str
    fix: str
    lesson: str | None
    seen_by: str
    report: str
    affects: str
    hidden: Callable[[Plan], str | None]
    implies: tuple[str, ...] = ()
    unequal: bool = False
    epochs: int = 1

    def __post_init__(self) -> None:
        for name, value, allowed in (("family", self.family, FAMILIES), ("affects", self.affects, AFFECTS)):
            if value not in allowed:
                raise AccumkitError(f"{self.slug}: {name}={value!r}; give one of {', '.join(allowed)}")
        if not self.patches:
            raise AccumkitError(f"{self.slug}: patches is empty; give at least one loop and its changed lines")

    @property
    def base(self) -> str:
        """The name of the right loop that is changed, where there is a choice the preferred one."""
        return next(iter(self.patches))

    @property
    def patch(self) -> Patch:
        """The change to that loop: pairs of an old line and the text in its place."""
        return self.patches[self.base]

    def __repr__(self) -> str:
        rows = [f"{self.slug}: {self.title}", row("family", self.family)]
        rows += [row(name, getattr(self, name)) for name in ("symptom", "why", "fix")]
        rows.append(row("lesson", self.lesson or "none yet"))
        rows.append(row("seen by", f"{self.seen_by}; it affects the {self.affects}"))
        rows.append(row("report", self.report))
        return "\n".join(rows)
