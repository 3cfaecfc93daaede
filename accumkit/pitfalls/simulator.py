"""A pitfall run for real: the right loop with its lines changed, watched beside the right loop."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from accumkit.audit.verdict import audit
from accumkit.modes import as_new
from accumkit.objective import AccumkitError
from accumkit.pitfalls.bases import Base
from accumkit.pitfalls.compiled import compiled
from accumkit.pitfalls.composing import compositions, named
from accumkit.pitfalls.data import loader_of, plan_of
from accumkit.pitfalls.patching import changed, difference
from accumkit.pitfalls.pitfall import Pitfall
from accumkit.pitfalls.plan import Plan
from accumkit.pitfalls.running import run
from accumkit.pitfalls.settings import Settings
from accumkit.pitfalls.simulation import Simulation


@as_new()
def simulate(
    what: str | Iterable[str],
    *,
    accumulation_steps: int = 4,
    micro_batch_size: int = 4,
    examples: int = 19,
    epochs: int | None = None,
    optimizer: str = "sgd",
    model: str | None = None,
    dtype: Any = None,
    device: str = "cpu",
    seed: int = 0,
    unequal: bool | None = None,
) -> Simulation:
    """Run one or more pitfalls beside the right loop, both watched.

    Parameters
    ----------
    what : str or iterable of str
        A slug of CATALOG, or several that are compatible.
    accumulation_steps : int
        Micro-batches in a window, N, 1 to 1,024.
    micro_batch_size : int
        Examples (or lines of text) in a micro-batch, 1 to 256.
    examples : int
        In the data set, 1 to 1,797.
    epochs : int, optional
        Passes over the data, 1 to 50; by default as many as the pitfall needs to show, 1 or 2.
    optimizer : {"sgd", "momentum", "adam", "adamw"}
    model : {"mlp", "cnn"}, optional
        By default "mlp"; a pitfall that is about a certain model takes none.
    dtype : {"float64", "float32"} or torch.dtype, optional
        Of the parameters; float64 by default, float32 where the pitfall is about mixed precision.
    device : str
    seed : int
        The same seed gives the same numbers.
    unequal : bool, optional
        Whether micro-batches differ in size; by default where the pitfall is about that.

    Returns
    -------
    Simulation
        Where the fault cannot show at these settings, ``shows`` is False and ``reason`` says why.

    Raises
    ------
    AccumkitError
        An unknown slug, pitfalls that exclude each other, or a setting that cannot work.

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> simulation = pitfalls.simulate("missing-division", accumulation_steps=4, micro_batch_size=4, examples=19)
    >>> [round(m.weight, 6) for m in simulation.trace.updates[0].micro_batches]
    [4.0, 4.0, 4.0, 4.0]
    >>> simulation.changed, simulation.verdict.findings[0].location
    ((10,), 'missing-division.py:11')
    """
    pitfalls = named(what)
    settings = Settings(
        accumulation_steps=accumulation_steps,
        micro_batch_size=micro_batch_size,
        examples=examples,
        epochs=max(p.epochs for p in pitfalls) if epochs is None else epochs,
        optimizer=optimizer,
        model=model,
        dtype=dtype,
        device=device,
        seed=seed,
        unequal=any(p.unequal for p in pitfalls) if unequal is None else unequal,
    )
    base, source, settings, plan = _choose(pitfalls, settings)
    name = "+".join(p.slug for p in pitfalls)
    runs = tuple(run(compiled(n, text), base, settings) for n, text in (("right", base.source), (name, source)))
    removed, added = changed(base.source, source)
    return Simulation(
        pitfalls=pitfalls,
        settings=settings,
        base=base.name,
        right_source=base.source,
        source=source,
        diff=difference(base.source, source, name),
        removed=removed,
        changed=added,
        right_verdict=audit(runs[0].trace),
        verdict=audit(runs[1].trace),
        hidden={p.slug: why for p in pitfalls if (why := p.hidden(plan))},
        runs=runs,
    )


@functools.cache
def warm_up() -> None:
    """Pay what only the first simulation costs (torch loads a part of itself for the first optimizer).

    Examples
    --------
    >>> from accumkit import pitfalls
    >>> pitfalls.warm_up()
    """
    for slug in ("missing-division", "token-weighting"):
        simulate(slug, examples=8, micro_batch_size=2, accumulation_steps=2)


def _choose(pitfalls: tuple[Pitfall, ...], settings: Settings) -> tuple[Base, str, Settings, Plan]:
    """Return the first right loop that is right for the data, with the wrong one's source."""
    for base, source in compositions(pitfalls):
        full = _for_base(settings, base, pitfalls)
        plan = plan_of(full, base, loader_of(full, base))
        if plan.even or not base.even:
            return base, source, full, plan
    slugs = " and ".join(p.slug for p in pitfalls)
    raise AccumkitError(
        f"{slugs} changes a loop that is right for micro-batches of one size only, and here a window has several "
        f"({settings.text}); give unequal=False, and examples that are a multiple of the micro-batch size"
    )


def _for_base(settings: Settings, base: Base, pitfalls: tuple[Pitfall, ...]) -> Settings:
    """Return the settings with what they leave open filled in."""
    about = " and ".join(p.slug for p in pitfalls)
    if settings.dtype is not None and settings.dtype not in base.dtypes:
        raise AccumkitError(
            f"dtype={settings.dtype!r}: {about} is about mixed precision, and runs with parameters in "
            f"{' or '.join(base.dtypes)}; leave dtype out"
        )
    own = base.builds or base.task == "tokens"
    if own and settings.model is not None:
        raise AccumkitError(f"model={settings.model!r}: {about} has a model of its own; leave model out")
    return replace(settings, dtype=settings.dtype or base.dtype, model=None if own else settings.model or "mlp")
