"""The checks of notebook 04: the right answer passes, plausible wrong ones are refused with a hint."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tutorial_utils import cuda, exercises
from tutorial_utils.exercises import NotYet


def test_04_1_accepts_the_operations(capsys):
    exercises.check_04_1({"b", "c", "f"})
    assert capsys.readouterr().out.startswith("Exercise 04.1: correct.")


def test_04_1_refuses_python_lines_missing_lines_and_no_answer():
    with pytest.raises(NotYet, match="lacks 0 and has too much: e(.|\n)*no Python"):
        exercises.check_04_1({"b", "c", "e", "f"})
    with pytest.raises(NotYet, match="lacks 1 and has too much: nothing"):
        exercises.check_04_1({"b", "c"})
    with pytest.raises(NotYet, match="has too much: \\.\\.\\."):
        exercises.check_04_1({"..."})


def scaling(static_x: Tensor, factor: Any, used: Any) -> tuple[Any, Any, Tensor]:
    _ = static_x * used
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        scaled = static_x * used
    return graph, factor, scaled


def test_04_2_accepts_a_tensor_as_factor(capsys):
    def capture_scaling(static_x: Tensor) -> tuple[Any, Any, Tensor]:
        factor = torch.ones((), device=static_x.device)
        return scaling(static_x, factor, factor)

    exercises.check_04_2(capture_scaling)
    assert capsys.readouterr().out.startswith("Exercise 04.2: correct.")


def test_04_2_refuses_a_python_number():
    with pytest.raises(NotYet, match="`factor` is of type float; it should be a torch.Tensor"):
        exercises.check_04_2(lambda static_x: scaling(static_x, 2.0, 2.0))


def test_04_2_refuses_a_factor_that_was_burnt_in():
    def capture_scaling(static_x: Tensor) -> tuple[Any, Any, Tensor]:
        factor = torch.ones((), device=static_x.device)
        return scaling(static_x, factor, factor.item())

    with pytest.raises(NotYet, match="is 1 instead of 7(.|\n)*baked in"):
        exercises.check_04_2(capture_scaling)


def test_04_2_refuses_another_shape_and_another_number_of_results():
    def capture_scaling(static_x: Tensor) -> tuple[Any, Any, Tensor]:
        factor = torch.ones(1, device=static_x.device)
        return scaling(static_x, factor, factor)

    with pytest.raises(NotYet, match=r"`factor` has shape \[1\]; it should be \[\]"):
        exercises.check_04_2(capture_scaling)
    with pytest.raises(NotYet, match="should return three things"):
        exercises.check_04_2(lambda static_x: capture_scaling(static_x)[:2])
