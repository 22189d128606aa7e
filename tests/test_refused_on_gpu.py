"""What the stand-in refuses, a GPU refuses: twenty operators, drawn by a fixed seed, each in a process of its own.

``pytest -m gpu -s tests/test_refused_on_gpu.py`` takes some minutes. A ``NotImplementedError`` is left out: it says
what the stand-in cannot record, not what a GPU refuses.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from tests.test_operators import (
    first_error,
    forward_and_backward,
    is_a_refusal,
    name_of,
    operators,
    outcomes,
    samples_of,
)
from tutorial_utils import cuda_stand_in
from tutorial_utils.timing import in_new_process

DRAWN, SEED = 20, 10
# A line of the list of limits: `narrow` reads a start that was made before the capture, on the host. A GPU knows that
# it is a host tensor, and captures; the stand-in takes it for a device tensor, and refuses to read it.
READS_A_TENSOR_FROM_BEFORE = {"narrow"}


def refused_by_the_stand_in() -> Iterator[tuple[str, int]]:
    """Yield operators in an order that SEED draws, each with the number of its first sample that is refused."""
    ops = operators()
    for op in random.Random(SEED).sample(ops, len(ops)):
        if name_of(op) in READS_A_TENSOR_FROM_BEFORE:
            continue
        for number, outcome in enumerate(outcomes(op, "float32")):
            if isinstance(outcome, Exception) and is_a_refusal(outcome):
                if not isinstance(outcome, NotImplementedError):
                    yield name_of(op), number
                break


def refusal(name: str, number: int, device: str) -> str | None:
    """Return the error with which a capture on `device` refuses a sample of an operator; None if it is captured."""
    warnings.simplefilter("ignore")
    cuda = torch.cuda if device == "cuda" else cuda_stand_in
    op = next(op for op in operators() if name_of(op) == name)
    sample = samples_of(op, "float32", device)[number]
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(3):
            forward_and_backward(op, sample, "float32", device)
    cuda.current_stream().wait_stream(stream)
    try:
        with cuda.graph(cuda.CUDAGraph()):
            forward_and_backward(op, sample, "float32", device)
    except Exception as error:
        error = first_error(error)
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


@pytest.mark.release  # loading the operators freezes PyTorch's global flags, which other tests set
def test_the_stand_in_refuses_a_sample_in_a_process_of_its_own() -> None:
    operators()  # skips where its package is missing
    assert "not permitted when stream is capturing" in in_new_process(refusal, "nonzero", 0, "cpu")
    assert in_new_process(refusal, "sin", 0, "cpu") is None


@pytest.mark.gpu
@pytest.mark.release
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_refuses_what_the_stand_in_refuses() -> None:
    answers = {}
    for name, number in islice(refused_by_the_stand_in(), DRAWN):
        try:
            answers[name] = in_new_process(refusal, name, number, "cuda")
        except RuntimeError as error:
            answers[name] = f"not tried: {error}"
        print(f"\n{name}, sample {number}: {answers[name] or 'captured'}", end="")
    accepted = [name for name, answer in answers.items() if answer is None]
    tried = [name for name, answer in answers.items() if not (answer or "").startswith("not tried")]
    print(f"\n{len(tried)} tried, {len(accepted)} of them captured by the GPU: {accepted}")
    assert len(tried) == DRAWN
    assert not accepted
