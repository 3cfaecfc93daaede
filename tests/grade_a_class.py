"""Grade a class: ``python tests/grade_a_class.py [--learners 30] [--even]``.

Each learner hands in every exercise. Among the answers are right and wrong ones, untouched and broken ones, and some
that never end, that fork without end, and that take 50 GB of memory. It says how long that took, and which mark is
not as it should be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also when it runs as a script from elsewhere

from learners import PROBLEMS, answers, exercise, hand_in, notebook

from accumkit.grading.bar import Bar
from accumkit.grading.grade import grade

USUAL = ["right"] * 8 + ["wrong"] * 6 + ["untouched"] * 2 + ["broken", "endless", "forking", "hungry"]


def lay(folder: Path, learners: int, kinds: list[str]) -> dict[str, tuple[str, set[str]]]:
    """Write a class's notebooks; return by file what kind of answer it has, and the statuses that it may get."""
    expected = {}
    for number, (name, problem) in enumerate(PROBLEMS.items()):
        sources = answers(problem)
        for learner in range(learners):
            kind = kinds[(learner + 7 * number) % len(kinds)]
            source, statuses = sources[kind]
            file = hand_in(folder, f"learner {learner + 1:02d}", exercise(name).name, notebook(name, source))
            expected[file.relative_to(folder).as_posix()] = kind, statuses
    return expected


def main(arguments: list[str]) -> int:
    """Grade the class; return an exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=30)
    parser.add_argument("--even", action="store_true", help="as many of each kind of answer")
    parser.add_argument("--jobs", type=int, default=2)
    told = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "class")
        kinds = list(dict.fromkeys(USUAL)) if told.even else USUAL
        expected = lay(folder, told.learners, kinds)
        print(f"{len(expected)} notebooks of {told.learners} learners:", dict(Counter(k for k, _ in expected.values())))
        bar = Bar(len(expected))
        began = time.monotonic()
        graded = grade(folder, Path(place, "out"), jobs=told.jobs, show=lambda done, total, mark: bar.show(done))
        spent = time.monotonic() - began
    print(f"{graded}; {spent / 60:.1f} minutes, {told.jobs} at a time.")
    wrong = []
    for kind in dict.fromkeys(kinds):
        of_kind = [mark for mark in graded.marks if expected[mark.file][0] == kind]
        seconds = sum(mark.seconds for mark in of_kind) / max(1, len(of_kind))
        print(f"  {kind}: {len(of_kind)} notebooks, {seconds:.1f} s each")
        wrong += [f"{mark.file}, {kind}: {mark.status}. {mark.said}" for mark in of_kind
                  if mark.status not in expected[mark.file][1]]  # fmt: skip
    print("\n".join(wrong) or "Every mark is right.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
