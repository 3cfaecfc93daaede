"""Numbers and lists as people write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import log10

UNITS = {"examples": "example", "tokens": "token", "values": "value"}


def number(value: float, digits: int = 3) -> str:
    """Return a number for people: ``digits`` figures, no trailing zeros, thousands apart.

    Examples
    --------
    >>> from accumkit.figures.numbers import number
    >>> number(2 + 1 / 3), number(65536.0), number(0.00002), number(3e-9)
    ('2.33', '65,536', '0.00002', '3e-9')
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "not finite"
    if value == 0:
        return "0"
    if abs(value) < 1e-6 or abs(value) >= 1e9:
        mantissa, exponent = f"{value:.0e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    # First to two digits more: 1.875 and 1.8749999, the same but for rounding, read the same.
    rounded = float(f"{float(f'{value:.{digits + 2}g}'):.{digits}g}")
    return f"{rounded:.12f}".rstrip("0").rstrip(".")


def weight_text(weight: float, fair: bool = False, least: int = 3) -> str:
    """Return a weight for people; one that is not fair never reads "1", whatever digits that takes.

    Examples
    --------
    >>> from accumkit.figures.numbers import weight_text
    >>> weight_text(1.0000001, fair=True), weight_text(1.0004)
    ('1', '1.0004')
    """
    if fair:
        return "1"
    for digits in range(least, 9):
        text = number(weight, digits)
        if text != "1":
            break
    return text


def listed(items: Sequence[object], most: int = 6) -> str:
    """Return "1, 2 and 3"; a long list keeps its first entries and says how many there are.

    Examples
    --------
    >>> from accumkit.figures.numbers import listed
    >>> listed([1]), listed([1, 2, 3]), listed(range(9), most=3)
    ('1', '1, 2 and 3', '0, 1, 2 and 6 more')
    """
    texts = [str(item) for item in items]
    if len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most} more"]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def spans(numbers: Sequence[int], most: int = 6) -> str:
    """Return whole numbers with runs drawn together: "1 to 3 and 5".

    Examples
    --------
    >>> from accumkit.figures.numbers import spans
    >>> spans([1, 2, 3, 5]), spans([1, 2])
    ('1 to 3 and 5', '1 and 2')
    """
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    texts = []
    for run in runs:
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(value) for value in run]
    return listed(texts, most)


def counted(count: float, unit: str) -> str:
    """Return a count with its unit: "1 example", "12 examples".

    Examples
    --------
    >>> from accumkit.figures.numbers import counted
    >>> counted(1, "examples"), counted(12, "tokens")
    ('1 example', '12 tokens')
    """
    one = UNITS.get(unit) or unit.removesuffix("es" if unit.endswith("batches") else "s")
    return f"{number(count)} {one if count == 1 else unit}"


def grouped(sizes: Sequence[float], groups: str, unit: str) -> str:
    """Return how many groups there are and what each of them holds, as one would say it.

    Examples
    --------
    >>> from accumkit.figures.numbers import grouped
    >>> grouped([3] * 16, "updates", "examples"), grouped([5] * 9 + [3], "updates", "examples")
    ('16 updates of 3 examples each', '10 updates: 9 of 5 examples and 1 of 3')
    >>> grouped([12, 7], "updates", "examples"), grouped([1], "updates", "examples")
    ('2 updates, of 12 and 7 examples', '1 update of 1 example')
    """
    many = counted(len(sizes), groups)
    times = Counter(sizes)
    if len(times) == 1:
        return f"{many} of {counted(sizes[0], unit)}" + (" each" if len(sizes) > 1 else "")
    if len(sizes) <= 3 and 1 not in times:
        return f"{many}, of {listed([number(size) for size in sizes])} {unit}"
    first, *rest = times.items()
    said = [f"{first[1]:,} of {counted(first[0], unit)}", *(f"{n:,} of {number(size)}" for size, n in rest)]
    return f"{many}: {listed(said)}"


def below(value: float, step: float = 1e-12) -> str:
    """Return a small error as a bound that is the same on every machine: "below 1e-12".

    Examples
    --------
    >>> from accumkit.figures.numbers import below
    >>> below(3e-16), below(3e-7), below(0.25)
    ('below 1e-12', 'below 1e-6', '0.25')
    """
    if not value < 1e-2:
        return number(value, 2)
    bound, exponent = step, round(-log10(step))
    while value >= bound:
        bound, exponent = bound * 10, exponent - 1
    return f"below 1e-{exponent}"
