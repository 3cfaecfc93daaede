"""Tables that studies print: plain text, and the same as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean, pstdev
from textwrap import wrap

CELL = "text-align:left;padding:2px 14px 2px 0;white-space:nowrap"


def plain(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return a table in plain text, its columns lined up.

    Examples
    --------
    >>> from accumkit.studies.table import plain
    >>> print(plain(("norm", "error"), [("GroupNorm", "below 1e-12")]))
    norm       error
    GroupNorm  below 1e-12
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)) for row in (head, *rows)]
    return "\n".join([line.rstrip() for line in lines] + wrap(note, 110))


def html(head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return the same table as HTML, in the colours of the notebook's theme."""
    top = "".join(f'<th scope="col" style="{CELL}">{escape(cell)}</th>' for cell in head)
    body = ""
    for first, *rest in rows:
        cells = "".join(f'<td style="{CELL}">{escape(cell)}</td>' for cell in rest)
        body += f'<tr><th scope="row" style="{CELL}">{escape(first)}</th>{cells}</tr>'
    said = f'<p style="max-width:900px">{escape(note)}</p>' if note else ""
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>{said}"


def small(value: float) -> str:
    """Return an error as people read it: "0.53", "0.004", and below a millionth a bound that every machine keeps.

    Examples
    --------
    >>> from accumkit.studies.table import small
    >>> small(0.5312), small(0.00412), small(3e-16), small(2e-9)
    ('0.53', '0.004', 'below 1e-12', 'below 1e-8')
    """
    if value < 1e-12:
        return "below 1e-12"
    if value < 1e-6:
        return f"below 1e-{next(e for e in range(12, 5, -1) if value < 10.0**-e)}"
    return f"{value:.2f}" if value >= 0.1 else f"{float(f'{value:.1g}'):.6f}".rstrip("0")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return a mean over seeds with its standard deviation: "0.52 ± 0.05"; the mean alone where they agree.

    Examples
    --------
    >>> from accumkit.studies.table import spread
    >>> spread([0.4, 0.6]), spread([1.0, 1.0])
    ('0.50 ± 0.10', '1.00')
    """
    apart = f"{pstdev(values):.{digits}f}"
    return f"{fmean(values):.{digits}f}" + (f" ± {apart}" if float(apart) else "")
