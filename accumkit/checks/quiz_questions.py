"""The eight questions of the quiz: what is often believed of accumulation, and what one would see if it held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """One answer to choose, and what is to be said of it once the quiz is over."""

    key: str
    text: str
    why: str  # of a wrong one: what one would see if it were true, and what one does see
    right: bool = False


@dataclass(frozen=True)
class QuizQuestion:
    """One question, and the lesson that answers it."""

    slug: str
    lesson: str  # its two digits
    text: str
    choices: tuple[Choice, ...]

    @property
    def right(self) -> Choice:
        """The right choice."""
        return next(choice for choice in self.choices if choice.right)

    def choice(self, key: str | None) -> Choice | None:
        """Return the choice of that key; None where there is none."""
        return next((choice for choice in self.choices if choice.key == key), None)


QUESTIONS = (
    QuizQuestion(
        "same-gradient",
        "01",
        "A right loop makes an update of 12 examples, in three micro-batches of 4. Another update takes the same 12 "
        "all at once. How do the two gradients compare?",
        (
            Choice(
                "noisier",
                "The accumulated one is noisier: each micro-batch sees only 4 examples.",
                "Then the difference would grow as micro-batches shrink, and be largest with one example in each. It "
                "is as small as rounding at every size: all 12 are added up before the model moves.",
            ),
            Choice(
                "same",
                "They are the same, apart from rounding.",
                "The gradient of a sum is the sum of the gradients, in any grouping.",
                right=True,
            ),
            Choice(
                "three-times",
                "The accumulated one is three times as long: three gradients are added up.",
                "Then every example would weigh 3. That is a loop that forgets to divide. A right one divides by the "
                "count of the window, and every example weighs 1.",
            ),
        ),
    ),
    QuizQuestion(
        "missing-division",
        "02",
        "Four micro-batches of one size make an update. A loop calls backward() on each one's mean loss, steps after "
        "the fourth, and divides nothing. What does one example weigh in the update, if 1 is fair?",
        (
            Choice(
                "averaged",
                "1: .grad holds the mean of all that was added to it.",
                "Then calling backward() twice on the same micro-batch would leave the gradient of one call. It leaves "
                "twice that: backward() adds, and never averages.",
            ),
            Choice(
                "quarter",
                "A quarter: each micro-batch is a quarter of the window.",
                "Then the update would be four times too short. That is what a loop leaves that divides twice, by the "
                "count and by N once more.",
            ),
            Choice(
                "four",
                "4: the four mean losses are added up.",
                "In general it weighs as much too much as its window has micro-batches.",
                right=True,
            ),
            Choice(
                "last",
                "Nothing, unless it is in the last micro-batch: each backward() writes over the one before.",
                "Then three of the four micro-batches would pull nothing. So it is when zero_grad() stands before "
                "every backward(). By itself backward() erases nothing.",
            ),
        ),
    ),
    QuizQuestion(
        "adam-hides",
        "02",
        "The same division is missing, but the optimizer is Adam, and the model ends nearly where it would have with "
        "the division. What follows?",
        (
            Choice(
                "hidden",
                "The fault is there. Adam hides it, until gradients are clipped, for example.",
                "Adam cancels a constant factor. A limit for clipping, or weight decay in the gradient, does not.",
                right=True,
            ),
            Choice(
                "not-needed",
                "With Adam no loop needs the division.",
                "Then leaving it out would do no harm with clipping either. There the two trainings part: the clipping "
                "meets a gradient four times too long, and cuts what it should not cut.",
            ),
            Choice(
                "adam-divides",
                "Adam divides by N itself, so every example weighs 1.",
                "Then a trace of the loop would measure weights of 1. It measures 4, as with any optimizer: Adam "
                "divides by a running size of the gradient, and knows nothing of N.",
            ),
        ),
    ),
    QuizQuestion(
        "small-micro-batch",
        "02",
        "A window has micro-batches of 8, 8 and 2 examples. The loop divides each one's mean loss by 3 and calls "
        "backward(). What does one example of the small micro-batch weigh, beside one of a large one?",
        (
            Choice(
                "alike",
                "As much: a mean is a mean for each example, whatever the size.",
                "Then every weight would be 1. Each micro-batch has a third of the update here: the large one shares "
                "it out among 8 examples, the small one among 2.",
            ),
            Choice(
                "less",
                "A quarter: the smaller a micro-batch, the less it pulls.",
                "Then the small one's bar would stand below the others. It stands above them: its share is a third, "
                "where 2 of 18 would be fair.",
            ),
            Choice(
                "rate",
                "More, but a lower learning rate makes up for it.",
                "Then all weights would be too high by one factor. Some are above 1 and some below: the gradient "
                "points elsewhere, and no learning rate turns it back.",
            ),
            Choice(
                "four-times",
                "Four times as much.",
                "A third of the update for 2 examples, and a third of it for 8.",
                right=True,
            ),
        ),
    ),
    QuizQuestion(
        "tail-leaks",
        "03",
        "A pass over the data has 10 micro-batches, and N is 4. The loop steps after every fourth micro-batch and "
        "calls zero_grad() right after each step; at the end of the pass it does nothing. What becomes of the last "
        "two micro-batches, if another pass follows?",
        (
            Choice(
                "lost",
                "They are in no update: the next pass begins with an empty .grad.",
                "Then the next pass's first update would hold four micro-batches. It holds six, for nothing cleared "
                ".grad in between. They would be lost if zero_grad() stood at the beginning of a window.",
            ),
            Choice(
                "leaked",
                "They wait in .grad, and get into the first update of the next pass.",
                "They come late and in the wrong update, which then has six micro-batches instead of four.",
                right=True,
            ),
            Choice(
                "own-update",
                "They make a short update of their own when the loader ends.",
                "Then a pass would have three updates. It has two: a loader knows nothing of the optimizer, so the "
                "loop has to step what is left.",
            ),
        ),
    ),
    QuizQuestion(
        "warm-up",
        "03",
        "A warm-up of the learning rate is planned to last 100 updates. N is 4, and the loop calls scheduler.step() "
        "after every micro-batch. When is the warm-up over?",
        (
            Choice(
                "early",
                "After 25 updates.",
                "The schedule moves four times an update. Every example weighs 1, and the updates are not those that "
                "were planned.",
                right=True,
            ),
            Choice(
                "on-time",
                "After 100 updates: a scheduler follows the optimizer's steps.",
                "Then the rate would stay as it is between two steps of the optimizer. It moves at every call of "
                "scheduler.step(), whether or not there was an update.",
            ),
            Choice(
                "late",
                "After 400 updates.",
                "Then the rate would rise four times too slowly. That is the reverse slip: the length is planned in "
                "micro-batches, and the scheduler is stepped once an update.",
            ),
        ),
    ),
    QuizQuestion(
        "batchnorm",
        "04",
        "A fully connected network has BatchNorm. A right loop makes an update of 64 examples in 32 micro-batches of "
        "2. How does its gradient compare with that of the 64 at once?",
        (
            Choice(
                "divided",
                "It is the same: the losses are divided by the count of the window.",
                "Then the cosine of the two would be 1, as it is with GroupNorm. With BatchNorm it falls far below, "
                "since means and variances are taken over 2 examples, before there is a loss to divide.",
            ),
            Choice(
                "momentum",
                "It is the same as soon as BatchNorm's momentum is corrected for N.",
                "Then another momentum would make another gradient. It changes none: momentum moves the running "
                "statistics, which only evaluation mode looks at.",
            ),
            Choice(
                "turned",
                "It points elsewhere: BatchNorm sees 2 examples at a time.",
                "Accumulation adds gradients up; it cannot join statistics.",
                right=True,
            ),
        ),
    ),
    QuizQuestion(
        "clip-scaled",
        "05",
        "Mixed precision, with a scale of 65,536. At the end of a window the gradients are clipped to a length of 1, "
        "then unscaled; then comes the step. Their true length is 2. How long is the gradient that the step uses?",
        (
            Choice(
                "one",
                "1, as it should be: both calls only multiply, so their order makes no difference.",
                "Then all orders that PyTorch accepts would make the same update. But clipping looks at the length "
                "first: it meets 131,072, cuts that to 1, and unscaling divides the 1 by 65,536.",
            ),
            Choice(
                "tiny",
                "1/65,536.",
                "Clipping took the scale for a part of the gradient and cut it off; unscaling took it away once more.",
                right=True,
            ),
            Choice(
                "refused",
                "PyTorch refuses this order, so there is no step.",
                "Then one of the calls would raise an error. None does: clipping is plain arithmetic on .grad, and "
                "the scaler does not hear of it.",
            ),
            Choice(
                "uncut",
                "2: a gradient that is scaled cannot be clipped.",
                "Then clipping would change nothing. It cuts, and 65,536 times too much.",
            ),
        ),
    ),
)
