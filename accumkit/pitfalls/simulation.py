"""What a simulation found: the right loop and the wrong one, side by side."""

from __future__ import annotations

import functools
import html
from dataclasses import dataclass, field, replace

from accumkit.audit.findings import listed, row
from accumkit.audit.verdict import Verdict
from accumkit.modes import as_new
from accumkit.pitfalls.bases import BASES
from accumkit.pitfalls.compiled import compiled
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.running import Run, run
from accumkit.pitfalls.settings import LIMITS, Settings, whole_number
from accumkit.pitfalls.telling import distance, sentence
from accumkit.trace.record import Trace


@dataclass(frozen=True)
class Outcome:
    """Where two loops stand after some passes over the data."""

    epochs: int
    loss: float  # of the wrong loop's model: the mean over all units of the data
    right_loss: float
    distance: float  # of its parameters from the right loop's, in units of how far the right loop has moved them


@dataclass(frozen=True, repr=False)
class Simulation:
    """One or more pitfalls, run for real beside the right loop.

    Parameters
    ----------
    pitfalls : tuple of Pitfall
    settings : Settings
        What both loops ran with.
    base : str
        The right loop's name.
    right_source, source : str
        Texts of the right loop and of the wrong one: the very code that ran.
    diff : str
        The unified diff between them, with all of their lines.
    removed, changed : tuple of int
        The lines of ``right_source`` that are gone, and those of ``source`` that are new; counted from 1.
    right_verdict, verdict : Verdict
        What the audit says about each.
    hidden : dict from str to str
        By slug: why the fault cannot show at these settings.
    """

    pitfalls: tuple[Pitfall, ...]
    settings: Settings
    base: str
    right_source: str
    source: str
    diff: str
    removed: tuple[int, ...]
    changed: tuple[int, ...]
    right_verdict: Verdict
    verdict: Verdict
    hidden: dict[str, str]
    runs: tuple[Run, Run] = field(repr=False)  # of the right loop and of the wrong one

    @property
    def slugs(self) -> tuple[str, ...]:
        """The pitfalls' names."""
        return tuple(pitfall.slug for pitfall in self.pitfalls)

    @property
    def name(self) -> str:
        """The wrong loop's name: its file in locations and tracebacks, without the ending."""
        return "+".join(self.slugs)

    @property
    def trace(self) -> Trace:
        """What the wrong loop did."""
        return self.runs[1].trace

    @property
    def right_trace(self) -> Trace:
        """What the right loop did."""
        return self.runs[0].trace

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings that torch gave while the wrong loop ran."""
        return self.runs[1].warnings

    @property
    def shows(self) -> bool:
        """Whether every pitfall shows at these settings."""
        return not self.hidden

    @property
    def reason(self) -> str:
        """Why not, in words; empty where they show."""
        return " ".join(dict.fromkeys(self.hidden.values()))

    @property
    def named(self) -> tuple[str, ...]:
        """The pitfalls that the audit names; also one that it can only name as one of two possibilities."""
        found = [finding.pitfall for finding in self.verdict.findings]
        return tuple(dict.fromkeys(found + [s for s in self.slugs if f"({s})" in self.verdict.reason]))

    @property
    def missed(self) -> tuple[str, ...]:
        """The pitfalls that show and that the audit does not name."""
        return tuple(slug for slug in self.slugs if slug not in self.hidden and slug not in self.named)

    @property
    def mistaken(self) -> tuple[str, ...]:
        """The pitfalls that the audit names and that the loop does not have."""
        known = {*self.slugs, *(slug for pitfall in self.pitfalls for slug in pitfall.implies)}
        return tuple(slug for slug in self.named if slug not in known)

    @property
    def ok(self) -> bool:
        """Whether the audit names what shows and nothing else, and accuses the right loop of nothing."""
        return self.shows and not self.missed and not self.mistaken and not self.right_verdict.findings

    @functools.cached_property
    def sentence(self) -> str:
        """What happened, in words and numbers; where the fault cannot show, why."""
        if self.shows:
            return sentence(*self.runs)
        return f"{self.reason} The audit names {listed(list(self.named))} here." if self.named else self.reason

    @property
    def distance(self) -> float:
        """How far its parameters end from the right loop's, in units of how far the right loop moves them."""
        return distance(*self.runs)

    def after(self, epochs: int = 5) -> Outcome:
        """Run both loops for some passes, unwatched, and return where they stand.

        Raises
        ------
        AccumkitError
            ``epochs`` is out of range.
        """
        whole_number("epochs", epochs, 1, LIMITS["epochs"])
        return _after(self.name, self.right_source, self.source, self.base, self.settings, epochs)

    def __repr__(self) -> str:
        shown = [f"`{line[0]} {line[1:].strip()}`" for line in self.diff.splitlines()[3:] if line[0] in "-+"]
        rows = [f"{pitfall.slug}: {pitfall.title}" for pitfall in self.pitfalls]
        rows.append(row("run", self.settings.text))
        rows += [row("changed" if not i else "", text) for i, text in enumerate(shown)]
        rows.append(row("seen", self.sentence))
        rows.append(row("audit", f"{self.verdict.status}; names {', '.join(self.named) or 'no pitfall'}"))
        rows.append(row("right", f"the right loop: {self.right_verdict.status}"))
        return "\n".join([*rows, "", repr(self.trace)])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


@functools.lru_cache(maxsize=64)
@as_new()
def _after(name: str, right: str, wrong: str, base: str, settings: Settings, epochs: int) -> Outcome:
    longer = replace(settings, epochs=epochs)
    runs = [run(compiled(*text), BASES[base], longer, watched=False) for text in (("right", right), (name, wrong))]
    return Outcome(epochs, runs[1].loss, runs[0].loss, distance(*runs))
