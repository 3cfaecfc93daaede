"""The examples of a micro-batch: digits as small pictures, lines of text as text."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape

from torch import Tensor

from accumkit.figures import large_type, palette

CARD = (
    "margin:0 0 8px;padding:10px 14px;max-width:900px;box-sizing:border-box;background:#fff;color:#1a1a1a;"
    "border:1px solid #bdbdbd;border-radius:6px;line-height:1.45"
)
SIDE = 40  # pixels on the page; the pictures themselves are 8 by 8
MOST = 64  # examples shown


def digits_html(images: Tensor, labels: Tensor, sentence: str, lost: bool = False) -> str:
    """Return digits as HTML: a picture each, with its label under it.

    Parameters
    ----------
    images : Tensor of shape (examples, 1, height, width)
        From 0 (paper) to 1 (ink).
    labels : Tensor of shape (examples,)
    sentence : str
        Written above them.
    lost : bool
        They are in no update: their frames are dashed.

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit import tasks
    >>> from accumkit.figures.digits import digits_html
    >>> images, labels = tasks.digits(2).tensors
    >>> digits_html(images, labels, "Two digits.").count("<img")
    2
    """
    pictures = [_digit(image, int(label), lost) for image, label in zip(images[:MOST], labels[:MOST], strict=True)]
    more = len(labels) - len(pictures)
    rest = f"<span>and {more} more</span>" if more else ""
    row = "display:flex;flex-wrap:wrap;align-items:center;gap:6px 8px;margin-top:6px"
    return f'<div style="{CARD}">{escape(sentence)}<div style="{row}">{"".join(pictures)}{rest}</div></div>'


def lines_html(lines: Sequence[str], sentence: str, lost: bool = False) -> str:
    r"""Return lines of text as HTML.

    Parameters
    ----------
    lines : sequence of str
    sentence, lost
        As in :func:`digits_html`.

    Returns
    -------
    str

    Examples
    --------
    >>> from accumkit.figures.digits import lines_html
    >>> "than ugly" in lines_html(["Beautiful is better than ugly.\n"], "One line.")
    True
    """
    rows = "".join(
        f'<div style="white-space:pre-wrap;padding:1px 8px;margin-top:3px;{_frame(lost)}">{escape(line.rstrip())}</div>'
        for line in lines[:MOST]
    )
    more = f"<div>and {len(lines) - MOST} more</div>" if len(lines) > MOST else ""
    size = large_type.pixels(13)
    return f'<div style="{CARD}">{escape(sentence)}<div style="font-size:{size}px">{rows}{more}</div></div>'


def to_png(image: Tensor) -> bytes:
    """Return a grey picture as PNG, a byte a pixel: dark where ``image``, of shape (height, width), is near 1."""
    grey = (255 * (1 - image.double().nan_to_num(0.5).clamp(0, 1))).round().to(int).tolist()
    rows = b"".join(b"\0" + bytes(row) for row in grey)  # a row begins with its filter: none
    head = struct.pack(">IIBBBBB", len(grey[0]), len(grey), 8, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def _digit(image: Tensor, label: int, lost: bool) -> str:
    whole = bool(image.isfinite().all())
    source = b64encode(to_png(image[0])).decode()
    alt = f"handwritten digit {label}" + ("" if whole else ", broken: some of it is not a number")
    side = large_type.pixels(SIDE)
    style = f"display:block;width:{side}px;height:{side}px;image-rendering:pixelated;{_frame(lost)}"
    return (
        f'<span style="text-align:center"><img alt="{alt}" src="data:image/png;base64,{source}" style="{style}">'
        f"{label}{'' if whole else ' (broken)'}</span>"
    )


def _frame(lost: bool) -> str:
    return f"border:2px dashed {palette.VERMILLION}" if lost else f"border:2px solid {palette.LINE}"
