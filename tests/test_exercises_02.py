"""The checks of notebook 02: the right answer passes, plausible wrong ones are refused with a hint."""

import pytest
import torch
from torch import Tensor

from tutorial_utils import exercises
from tutorial_utils.exercises import NotYet


@pytest.fixture
def buffers() -> tuple[Tensor, Tensor]:
    return torch.zeros(64, 1, 28, 28), torch.zeros(64, dtype=torch.int64)


def test_02_1_accepts_a_refill_that_checks_first(buffers, capsys):
    static_images, static_targets = buffers

    def refill_both(images: Tensor, targets: Tensor) -> None:
        if images.shape != static_images.shape or targets.shape != static_targets.shape:
            raise ValueError("shape")
        static_images.copy_(images)
        static_targets.copy_(targets)

    exercises.check_02_1(refill_both, static_images, static_targets)
    assert capsys.readouterr().out.startswith("Exercise 02.1: correct.")


def test_02_1_refuses_rebinding(buffers):
    def refill_both(images: Tensor, targets: Tensor) -> None:
        static_images, static_targets = images, targets  # noqa: F841 - the mistake

    with pytest.raises(NotYet, match="`static_images` differs(.|\n)*rebind"):
        exercises.check_02_1(refill_both, *buffers)


def test_02_1_refuses_a_plain_copy_which_repeats_a_batch_of_one(buffers):
    static_images, static_targets = buffers

    def refill_both(images: Tensor, targets: Tensor) -> None:
        if len(images) not in (1, 64):
            raise ValueError("shape")
        static_images.copy_(images)
        static_targets.copy_(targets)

    with pytest.raises(NotYet, match="1 images and 1 targets` raised nothing(.|\n)*repeats a batch of one"):
        exercises.check_02_1(refill_both, *buffers)


def test_02_1_refuses_a_check_that_comes_between_the_copies(buffers):
    static_images, static_targets = buffers

    def refill_both(images: Tensor, targets: Tensor) -> None:
        for buffer, batch in ((static_images, images), (static_targets, targets)):
            if buffer.shape != batch.shape:
                raise ValueError("shape")
            buffer.copy_(batch)

    with pytest.raises(NotYet, match="64 images and 1 targets` was refused, but a buffer had changed"):
        exercises.check_02_1(refill_both, *buffers)


def test_02_2_accepts_writing_in_place(capsys):
    exercises.check_02_2(lambda mean, loss: mean.copy_(0.9 * mean + 0.1 * loss))
    exercises.check_02_2(lambda mean, loss: mean.lerp_(loss, 0.1))
    assert capsys.readouterr().out.count("Exercise 02.2: correct.") == 2


def test_02_2_refuses_rebinding():
    with pytest.raises(NotYet, match="`mean` is 2.0(.|\n)*binds a local name"):
        exercises.check_02_2(lambda mean, loss: 0.9 * mean + 0.1 * loss)


def test_02_2_refuses_exchanged_memory():
    def update(mean: Tensor, loss: Tensor) -> None:
        mean.data = 0.9 * mean + 0.1 * loss

    with pytest.raises(NotYet, match="another address"):
        exercises.check_02_2(update)


def test_02_2_refuses_a_changed_loss():
    with pytest.raises(NotYet, match="`loss` is|`mean` is"):
        exercises.check_02_2(lambda mean, loss: mean.mul_(0.9).add_(loss.mul_(0.1)))


def test_02_3_accepts_the_three_letters(capsys):
    exercises.check_02_3({"b", "d", "f"})
    assert capsys.readouterr().out.startswith("Exercise 02.3: correct.")


@pytest.mark.parametrize("seen", [{"a", "b", "d", "f"}, {"b", "d"}, {"b", "d", "e", "f"}, {"..."}])
def test_02_3_refuses_other_letters(seen):
    with pytest.raises(NotYet, match="not the answer(.|\n)*Hint: Ask of every line"):
        exercises.check_02_3(seen)


def test_02_3_letters_are_what_a_replay_sees():
    """The answer itself, found by running the six lines against a captured graph."""
    from tutorial_utils import cuda, device

    lines = {
        "a": "static_x = y",
        "b": "static_x[:] = y",
        "c": "static_x = static_x + 1",
        "d": "static_x += 1",
        "e": "static_x.data = y",
        "f": "static_x.view(-1)[0] = 7",
    }
    seen = set()
    for letter, line in lines.items():
        names = {"static_x": torch.ones(4, device=device), "y": torch.full((4,), 5.0, device=device)}
        keep = names["static_x"], names["static_x"].detach()  # the alias keeps the memory when `.data` is exchanged
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            result = names["static_x"] * 2
        graph.replay()
        before = result.clone()
        exec(line, names)
        graph.replay()
        if not torch.equal(result, before):
            seen.add(letter)
        del keep
    assert seen == {"b", "d", "f"}
