"""Print what the kit costs: ``python -m tests.bench [--quick]``."""

from __future__ import annotations

import argparse
import time

import torch

from . import checks, loops, memory, panel, watching

BENCHES = [
    loops.bench,
    watching.bench,
    memory.bench,
    panel.bench,
    checks.bench,
]  # each takes ``quick`` and returns a text; a new one is a line here


LONG = "It takes minutes with --quick, and longer without; the limits hold on a machine where nothing else runs."


def main() -> None:
    """Run every bench and print its table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__, epilog=LONG)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a figure to quote")
    quick = parser.parse_args().quick
    print(LONG, end="\n\n", flush=True)
    torch.set_num_threads(1)
    begin = time.perf_counter()
    for bench in BENCHES:
        print(bench(quick), end="\n\n", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s in all; the row that is run twice shows the noise")


if __name__ == "__main__":
    main()
