"""Small real data and small models: handwritten digits, and the lines of the Zen of Python."""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from accumkit.modes import as_new
from accumkit.objective import AccumkitError

PADDING = 0  # the token that fills short lines up; its labels are IGNORED
IGNORED = -100  # torch's own default for targets that count for nothing


def digits(examples: int | None = None, dtype: torch.dtype = torch.float32, seed: int = 0) -> TensorDataset:
    """Return scikit-learn's handwritten digits, mixed up by ``seed``.

    Parameters
    ----------
    examples : int, optional
        How many of the 1,797 to take; all by default.
    dtype : torch.dtype
        Of the images.
    seed : int
        The order of the examples depends on it alone.

    Returns
    -------
    TensorDataset
        Pairs of an image, shape (1, 8, 8) with values from 0 to 1, and a label from 0 to 9.

    Raises
    ------
    AccumkitError
        scikit-learn is missing, or ``examples`` is not a whole number from 1 to 1,797.

    Examples
    --------
    >>> from accumkit import tasks
    >>> images, labels = tasks.digits(19).tensors
    >>> tuple(images.shape), tuple(labels.shape)
    ((19, 1, 8, 8), (19,))
    """
    images, labels = _all_digits()
    examples = len(labels) if examples is None else _whole("examples", examples, len(labels))
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:examples]
    return TensorDataset(images[chosen].to(dtype), labels[chosen])


@functools.cache
@as_new()  # what is kept must not depend on what a notebook had set just then
def _all_digits() -> tuple[Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as missing:
        raise AccumkitError(
            "the handwritten digits come with scikit-learn, which is not installed here; "
            "install it with: python -m pip install scikit-learn"
        ) from missing
    data = load_digits()
    return torch.tensor(data.images / 16.0, dtype=torch.float64).unsqueeze(1), torch.tensor(data.target).long()


def loader(data: Dataset, micro_batch_size: int, shuffle: bool = False, seed: int = 0) -> DataLoader:
    """Return a DataLoader whose order depends on ``seed`` alone.

    It has a random generator of its own, so that iterating it neither reads nor moves torch's global one.

    Parameters
    ----------
    data : Dataset
        What to load.
    micro_batch_size : int
        Examples in a micro-batch; the last one is shorter where the examples do not divide evenly.
    shuffle : bool
        Mix the examples anew in every pass.
    seed : int
        Of the loader's generator.

    Returns
    -------
    DataLoader
        Without worker processes.

    Examples
    --------
    >>> from accumkit import tasks
    >>> [len(labels) for _, labels in tasks.loader(tasks.digits(19), 4)]
    [4, 4, 4, 4, 3]
    """
    size = _whole("micro_batch_size", micro_batch_size)
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(data, size, shuffle=shuffle, generator=generator, collate_fn=getattr(data, "collate", None))


def mlp(seed: int = 0, dtype: torch.dtype = torch.float32, hidden: int = 64) -> nn.Sequential:
    """Return a multilayer perceptron for the digits: 64 pixels, ``hidden`` units, 10 classes.

    Examples
    --------
    >>> from accumkit import tasks
    >>> sum(p.numel() for p in tasks.mlp().parameters())
    4810
    """
    with _seeded(seed):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    return model.to(dtype)


def cnn(
    seed: int = 0, dtype: torch.dtype = torch.float32, norm: str | Callable[[int], nn.Module] | None = None
) -> nn.Sequential:
    """Return a small convolutional network for the digits.

    Parameters
    ----------
    seed : int
        Of its first parameters.
    dtype : torch.dtype
        Of its parameters.
    norm : {"batch", "group", "layer"} or callable, optional
        A normalisation after each convolution; a callable gets the number of channels. None by default.

    Returns
    -------
    nn.Sequential
        From images of shape (examples, 1, 8, 8) to scores of shape (examples, 10).

    Raises
    ------
    AccumkitError
        ``norm`` is none of those.

    Examples
    --------
    >>> from accumkit import tasks
    >>> sum(p.numel() for p in tasks.cnn().parameters())
    17362
    """
    norms = {
        None: lambda channels: nn.Identity(),
        "batch": nn.BatchNorm2d,
        "group": lambda channels: nn.GroupNorm(4, channels),
        "layer": lambda channels: nn.GroupNorm(1, channels),  # over all channels of one example
    }
    if not callable(norm) and norm not in norms:
        raise AccumkitError(f"norm={norm!r}: give 'batch', 'group', 'layer', None, or a function of the channels")
    layer = norm if callable(norm) else norms[norm]
    with _seeded(seed):
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), layer(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), layer(32), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 24), nn.ReLU(), nn.Linear(24, 10),
        )  # fmt: skip
    return model.to(dtype)


class Lines(Dataset):
    """Lines of text as tokens, one a character; every line ends with the newline.

    ``loader`` pads the lines of a micro-batch to the longest one, so each batch is a pair of tokens and
    labels of shape (lines, characters), for ``ak.next_token()``: labels are the tokens themselves, and
    `IGNORED` where a line is over.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        if not lines:
            raise AccumkitError("no lines were given; at least one is needed")
        self.lines = tuple(line + "\n" for line in lines)
        self.vocabulary = ("", *sorted(set("".join(self.lines))))  # the first entry is the padding
        token = {character: i for i, character in enumerate(self.vocabulary)}
        self.tokens = [torch.tensor([token[character] for character in line]) for line in self.lines]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]

    @staticmethod
    def collate(lines: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Pad lines to the longest of them: tokens with `PADDING`, labels with `IGNORED`."""
        pad = functools.partial(nn.utils.rnn.pad_sequence, lines, batch_first=True)
        return pad(padding_value=PADDING), pad(padding_value=IGNORED)

    def decode(self, tokens: Tensor) -> str:
        """Return the text of a row of tokens, without its padding."""
        return "".join(self.vocabulary[token] for token in tokens.tolist() if token != IGNORED)


def zen() -> Lines:
    r"""Return the lines of the Zen of Python: 20 lines of 19 to 69 characters.

    Returns
    -------
    Lines
        Give them to `loader`, and `next_token_model` their vocabulary.

    Examples
    --------
    >>> from accumkit import tasks
    >>> lines = tasks.zen()
    >>> tokens, labels = next(iter(tasks.loader(lines, 2)))
    >>> lines.decode(tokens[1])
    'Beautiful is better than ugly.\n'
    >>> int((labels != tasks.IGNORED).sum()), labels.numel()
    (64, 66)
    """
    with contextlib.redirect_stdout(io.StringIO()):  # importing it prints the poem
        import this
    return Lines([line for line in codecs.decode(this.s, "rot13").splitlines() if line])


class _Past(nn.Conv1d):
    """A convolution over the last few tokens; it never looks ahead."""

    def forward(self, seen: Tensor) -> Tensor:  # (lines, characters, hidden), in and out
        padded = nn.functional.pad(seen.transpose(1, 2), (self.kernel_size[0] - 1, 0))
        return super().forward(padded).transpose(1, 2)


def next_token_model(
    vocabulary: int = 46, seed: int = 0, dtype: torch.dtype = torch.float32, hidden: int = 32, context: int = 5
) -> nn.Sequential:
    """Return a model that scores the next character from the last ``context`` ones.

    Parameters
    ----------
    vocabulary : int
        Number of tokens, padding included; the default is that of `zen`.
    seed, dtype
        Of its first parameters.
    hidden : int
        Width of the embedding and of the convolution.
    context : int
        Characters that it sees.

    Returns
    -------
    nn.Sequential
        From tokens of shape (lines, characters) to scores of shape (lines, characters, vocabulary).

    Examples
    --------
    >>> import torch
    >>> from accumkit import tasks
    >>> tasks.next_token_model()(torch.zeros(2, 7, dtype=torch.long)).shape
    torch.Size([2, 7, 46])
    """
    with _seeded(seed):
        model = nn.Sequential(
            nn.Embedding(vocabulary, hidden), _Past(hidden, hidden, context), nn.ReLU(), nn.Linear(hidden, vocabulary)
        )
    return model.to(dtype)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from ``seed`` inside, and leave torch's global generator as it was."""
    state = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would seed every GPU as well
        yield
    finally:
        torch.set_rng_state(state)


def _whole(name: str, value: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        limit = "of at least 1" if most is None else f"from 1 to {most:,}"
        raise AccumkitError(f"{name}={value!r}: give a whole number {limit}")
    return value
