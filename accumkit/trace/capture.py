"""A forward call caught so that it can be run again, with the batch and the epoch it belongs to."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from accumkit.batches import leading_size, tensors_in
from accumkit.objective import Objective
from accumkit.trace.fetched import Fetches
from accumkit.trace.graph import tag
from accumkit.trace.piece import Call, Piece, as_marked, detached, mark
from accumkit.trace.record import Trace
from accumkit.trace.replay import other_draws, other_states, rng_states


class Capture:
    """Turns forward calls into pieces."""

    def __init__(self, model: nn.Module, objective: Objective | None, trace: Trace) -> None:
        self.model, self.objective, self.trace = model, objective, trace
        self.device = next(p for p in model.parameters() if p.requires_grad).device
        self.buffers = list(model.buffers())
        self.fetches = Fetches(2 * trace.accumulation_steps + 64, objective is not None)
        self.epochs: dict[int, int] = {}  # from a loader's pass to the trace's epoch
        self.epoch = -1
        self.first_looks = 8  # forwards after which Python's and numpy's generators are looked at
        self.draws_elsewhere = False  # forward has drawn on one of these
        self.fed: tuple[tuple[float, ...], ...] | None = None  # the last window, in fingerprints
        self.copying = objective is not None  # inputs, until a window has shown that their memory is left alone

    def evaluated(self, args: tuple, kwargs: dict) -> None:
        """Note the batch of a forward without gradients: it may be trained on later, but is not the next to be."""
        given = tensors_in((args, kwargs))
        entry = self.fetches.match(given, leading_size(given, given) if given else None, trained=False)
        if entry is not None:
            entry.evaluated = True

    def call(self, args: tuple, kwargs: dict) -> Call:
        """Catch a forward call that a backward may follow."""
        given = tensors_in((args, kwargs)) if kwargs else tensors_in(args)
        examples = leading_size(given, given) if given else 0
        entry = self.fetches.match(given, examples)
        training = self.model.training
        again = entry is None and training and self.fetches.restarted(given)
        if entry is not None:
            number = entry.epoch
            self.fetches.use(entry)
            if not given and entry.tensors:
                examples = leading_size(entry.tensors, entry.batch)
        else:
            number = self.fetches.torn_pass
        if self.objective is None:
            return Call(examples, training, number, again)
        batch = entry.batch if entry is not None else (kwargs or args)
        own_args, own_kwargs, own_batch = detached((args, kwargs, batch), self.copying)
        piece = Piece(
            batch=own_batch,
            args=own_args,
            kwargs=own_kwargs,
            count=self._count(batch),
            examples=examples,
            training=training,
            autocast=_autocast(self.device.type),
            rng=rng_states(self.device),
            buffers=[b.detach().clone() for b in self.buffers],
            number=number,
            again=again,
            others=other_states() if self.first_looks or self.draws_elsewhere else None,
            whole=entry is not None and entry.size is not None and examples > entry.size,
            originals=tensors_in((args, kwargs, batch)) if self.copying else [],
        )
        piece.marks = mark(piece.tensors)
        for dtype in piece.autocast.values():  # the lowest precision in use is what weights can be held to
            self.trace.precision = str(dtype).removeprefix("torch.")
        return piece

    def epoch_of(self, pieces: list[Call]) -> int:
        """Return the epoch of a micro-batch whose backward has run; an evaluation's passes make no epoch."""
        number = pieces[0].number if pieces else -1
        if number >= 0:
            return self.epoch_at(number)
        if any(piece.again for piece in pieces):
            self.epoch += 1
        elif self.epoch < 0:
            self.epoch = 0
        return self.epoch

    def epoch_at(self, number: int) -> int:
        """Return the epoch that a pass over the data is, the one that is trained on now."""
        epoch = self.epochs.get(number)
        if epoch is None:
            epoch = self.epochs[number] = len(self.epochs)
        self.epoch = epoch
        return epoch

    def new_pass(self, pieces: list[Call]) -> bool:
        """Say whether forward calls are the first of a pass over the data."""
        return bool(pieces) and (pieces[-1].again or -1 < pieces[-1].number not in self.epochs)

    def _count(self, batch: Any) -> float:
        try:
            with torch.no_grad():
                count = float(self.objective.count(batch))
        except Exception as error:  # the reader's function, on whatever the loop fed
            self.reason(
                f"the objective's count raised {type(error).__name__} ({error}) for a batch of type "
                f"{type(batch).__name__}; {self.stand_in()}"
            )
            return float("nan")
        return int(count) if count.is_integer() else count

    def stand_in(self) -> str:
        """Say what stands in for a batch that is not known, why that may be, and what to do."""
        most = f", and of batches fetched ahead only the last {self.fetches.most} are kept" if self.fetches.torn else ""
        return (
            f"forward's arguments stand in for the batch where no fetched batch fits them{most}: iterate over a "
            "DataLoader, in each pass anew, or over trace.batches(...), to show the targets too"
        )

    def finish(self, piece: Call, output: Any) -> None:
        """Note, after its forward, its graph and, where it may run again, whether it drew random numbers."""
        piece.tag = tag(output)
        if self.objective is None:
            return
        now = rng_states(self.device)
        piece.drew = not all(map(torch.equal, piece.rng, now))
        if piece.others is not None:
            self.first_looks = max(0, self.first_looks - 1)
            self.draws_elsewhere = self.draws_elsewhere or other_draws(piece.others, other_states())
            piece.drew = piece.drew or self.draws_elsewhere
            if not self.draws_elsewhere:
                piece.others = None

    def fed_again(self, marks: tuple[tuple[float, ...], ...]) -> bool | None:
        """Return whether a window was fed what the one before was; None for the first, and where nothing tells."""
        before, self.fed = self.fed, marks
        return None if before is None or not all(marks) else marks == before

    def look_for_copies(self, pieces: list[Piece]) -> None:
        """At a window's end: go on with copies of inputs only where their memory is written again."""
        caught = [p for p in pieces if p.originals]
        if caught:
            self.copying = not all(as_marked(p.marks, p.originals) for p in caught)

    def count_epochs(self) -> None:
        """Fill in the trace's sizes of epochs: trained on, fetched, and in the loader."""
        trace, fetched = self.trace, {epoch: self.fetches.sizes[number] for number, epoch in self.epochs.items()}
        kept = chain.from_iterable(map(attrgetter("micro_batches"), trace.updates))
        trained = Counter(map(attrgetter("epoch"), chain(kept, trace.lost)))
        trace.epoch_sizes = [trained[epoch] for epoch in range(max(trained, default=-1) + 1)]
        trace.fetched_sizes = [fetched.get(epoch, (0, -1))[0] for epoch in range(len(trace.epoch_sizes))]
        trace.loader_sizes = [fetched.get(epoch, (0, -1))[1] for epoch in range(len(trace.epoch_sizes))]

    def reason(self, sentence: str) -> None:
        """Note once why something could not be seen."""
        if sentence not in self.trace.reasons:
            self.trace.reasons.append(sentence)


def _autocast(device: str) -> dict[str, torch.dtype]:
    return {k: torch.get_autocast_dtype(k) for k in {"cpu", device} if torch.is_autocast_enabled(k)}
