"""What a check answers: a headline and items, as plain text and as HTML; and an audit's verdict as such an answer."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WIDTH = 100  # of the plain text, in characters
CODE = re.compile(r"`([^`]+)`")  # what stands between backquotes is code
NOT_ATTEMPTED, NOT_YET, RIGHT = "not attempted", "not yet", "right"


@dataclass(frozen=True, repr=False)
class Outcome:
    """What a check, a hint or a solution says: plain text, and the same in HTML for a notebook.

    Parameters
    ----------
    status : str
        "not attempted", "not yet" or "right"; "hint" and "solution" for those.
    lead : str
        The headline, a sentence; code stands in backquotes, here as in the items.
    items : tuple of tuple of str
        What else there is to say: each item a heading and the sentences under it.
    code : str
        Shown as code below the words.
    trace : Trace, optional
        What a learner's loop did; a notebook shows what each example weighed in it.
    """

    status: str
    lead: str
    items: tuple[tuple[str, ...], ...] = ()
    code: str = ""
    trace: Any = None

    def __repr__(self) -> str:
        lines = _wrapped(f"{self.status.capitalize()}: {self.lead}", "")
        for number, (heading, *sentences) in enumerate(self.items, 1):
            lines += ["", *_wrapped(f"{number}. {heading}", "   ", hang=3)]
            lines += [line for sentence in sentences for line in _wrapped(sentence, "   ")]
        return "\n".join([*lines, *(["", self.code] if self.code else [])])

    def _repr_html_(self) -> str:
        said = f"<p><strong>{self.status.capitalize()}:</strong> {_marked(self.lead)}</p>"
        for number, (heading, *sentences) in enumerate(self.items, 1):
            told = "".join(f"<br>{_marked(sentence)}" for sentence in sentences)
            said += f"<p><strong>{number}. {_marked(heading)}</strong>{told}</p>"
        code = f"<pre>{html.escape(self.code)}</pre>" if self.code else ""
        # Colours are inherited, so that both of JupyterLab's themes stay readable.
        style = "border-left:4px solid currentColor;padding:2px 0 2px 12px;margin:0 0 8px;max-width:52em"
        return f'<div role="status" style="{style}">{said}{code}</div>{self._picture()}'

    def _picture(self) -> str:
        if self.trace is None or not any(micro.weight is not None for micro in self.trace.micro_batches):
            return ""  # a picture of weights that were not measured would say nothing
        from accumkit.figures import weights_picture  # only a notebook needs it

        return weights_picture().html(self.trace)


def _marked(text: str) -> str:
    """Return text as HTML, with its code as code that is not torn apart at a line's end."""
    return CODE.sub(r'<code style="white-space:nowrap">\1</code>', html.escape(text))


def _wrapped(text: str, indent: str, hang: int = 0) -> list[str]:
    whole = CODE.sub(lambda code: code[0].replace(" ", "\0"), text)  # code is not torn apart
    lines = textwrap.wrap(whole, WIDTH, initial_indent=indent[hang:], subsequent_indent=indent, break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return [line.replace("\0", " ") for line in lines]


def of_verdict(
    verdict: Any,
    praise: str,
    advise: Callable[[Any], str] | None = None,
    why: str | None = None,
    remark: Callable[[Any], str | None] | None = None,
) -> Outcome:
    """Return the outcome that an audit's verdict on a learner's loop amounts to: its first finding, the others by name.

    Parameters
    ----------
    verdict : Verdict
        As `accumkit.check_loop` returns it.
    praise : str
        What to say of a right answer.
    advise : callable, optional
        From a finding to what a learner should change; by default what the finding says itself.
    why : str, optional
        What to say where nothing was found; by default the verdict's reasons.
    remark : callable, optional
        From the first finding to a sentence about the picture, or None.
    """
    if verdict.ok:
        return Outcome(RIGHT, praise, trace=verdict.trace)
    if not verdict.findings:
        said = why or " ".join(verdict.reasons) or "the updates are not those of the big batch."
        return Outcome(NOT_YET, said, trace=verdict.trace)
    first, *others = verdict.findings
    lead = "there is one thing to mend."
    if others:
        lead = f"there are {len(verdict.findings)} things to mend. Begin with the first, and check again: that may "
        lead += "mend the rest too."
    at = f", at {first.location}" if first.location else ""
    change = advise(first) if advise else first.fix
    told = [heading(first), f"Measured: {first.evidence}.", f"To change{at}: {change}."]
    said = remark(first) if remark else None
    items = (tuple(told + [said] * bool(said)), *((heading(finding),) for finding in others))
    return Outcome(NOT_YET, lead, items, trace=verdict.trace)


def heading(finding: Any) -> str:
    """Return a finding's title, and its slug in parentheses."""
    return f"{finding.title[:1].upper()}{finding.title[1:]} ({finding.pitfall})"
