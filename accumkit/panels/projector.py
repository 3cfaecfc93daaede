"""Panels for the back row: large type, switched on and off for every panel of a notebook at once."""

from __future__ import annotations

from weakref import WeakSet

from accumkit.errors import AccumkitError
from accumkit.figures import large_type

CLASS = "accumkit-large"
WIDER = 140  # pixels that a control of told width gets: what its words need
LIVE: WeakSet = WeakSet()  # the panels that there are, to be drawn again at a switch

# The sizes that ipywidgets' own style sheet is made of; those that it derives from them are told too.
SIZES = {
    "--jp-widgets-font-size": f"{large_type.TEXT}px",
    "--jp-widgets-inline-height": "44px",
    "--jp-widgets-inline-width": "480px",
    "--jp-widgets-inline-width-short": "238px",
    "--jp-widgets-inline-width-tiny": "92px",
    "--jp-widgets-inline-label-width": "130px",
    "--jp-widgets-inline-margin": "6px",
    "--jp-widgets-radio-item-height": "38px",
    "--jp-widgets-radio-item-height-adjustment": "6px",
    "--jp-widgets-slider-track-thickness": "8px",
    "--jp-widgets-slider-handle-size": "28px",
    "--jp-widgets-progress-thickness": "32px",
}
RULES = (
    f"<style>.{CLASS}{{{';'.join(f'{name}:{size}' for name, size in SIZES.items())}}}"
    f".{CLASS} [role=status],.{CLASS} .widget-html-content div,.{CLASS} .widget-radio{{max-width:none!important}}"
    f".{CLASS} :is(.widget-slider,.widget-checkbox,.widget-dropdown,.widget-radio){{max-width:100%!important}}"
    f".{CLASS} .widget-radio-box label{{font-size:{large_type.TEXT}px!important}}"
    f".{CLASS} .widget-radio-box input{{width:24px!important;height:24px!important;margin:7px 8px 7px 1px}}"
    f".{CLASS} input[type=checkbox]{{width:24px;height:24px}}"
    f".{CLASS} .accumkit-quiz{{max-width:none!important}}"  # lays out its choices itself
    f".{CLASS} .accumkit-quiz .widget-radio-box label{{padding-left:38px}}"
    f".{CLASS} .accumkit-quiz .widget-radio-box input{{margin:1px 0 0}}"
    f".{CLASS} :is(pre,code){{font-size:.9em}}</style>"
)


def projector(on: bool = True) -> None:
    """Show panels and their pictures in large type, or as usual again.

    Every panel of the notebook changes at once, and so does what is drawn later: pictures, verdicts, feedback. Set the
    environment variable ``ACCUMKIT_PROJECTOR`` to 1 before the start to have large type in every notebook. Text and
    code of the notebook itself grow with the browser's zoom.

    Parameters
    ----------
    on : bool
        False: as usual.

    Raises
    ------
    AccumkitError
        ``on`` is neither True nor False.

    Examples
    --------
    >>> from accumkit import panels
    >>> panel = panels.start_here()
    >>> usual = panel.pictures.value
    >>> panels.projector()
    >>> panel.pictures.value == usual
    False
    >>> panels.projector(on=False)
    >>> panel.pictures.value == usual
    True
    """
    if not isinstance(on, bool):
        raise AccumkitError(f"projector({on!r}): give True for large type, or False for the usual one")
    large_type.set_large(on)
    errors = []
    for panel in list(LIVE):
        had_failed = panel.has_failed
        try:
            panel.fit_type()
        except Exception as error:  # of a strict panel; the others change all the same
            if not had_failed:
                errors.append(error)
    if errors:
        raise errors[0]
