"""The checks of notebook 05: the right answer passes, plausible wrong ones are refused with a hint."""

import copy

import pytest
import torch
from torch import Tensor

from tutorial_utils import cuda, device, exercises
from tutorial_utils.exercises import NotYet
from tutorial_utils.models import MnistNet


def test_05_1_accepts_clones(capsys):
    def replay_all(graph, static_input: Tensor, static_result: Tensor, inputs: list[Tensor]) -> Tensor:
        results = []
        for tensor in inputs:
            static_input.copy_(tensor)
            graph.replay()
            results.append(static_result.clone())
        return torch.stack(results)

    exercises.check_05_1(replay_all)
    assert capsys.readouterr().out.startswith("Exercise 05.1: correct.")


def test_05_1_refuses_the_overwritten_result():
    def replay_all(graph, static_input: Tensor, static_result: Tensor, inputs: list[Tensor]) -> Tensor:
        results = []
        for tensor in inputs:
            static_input.copy_(tensor)
            graph.replay()
            results.append(static_result)
        return torch.stack(results)

    with pytest.raises(NotYet, match="is 10 instead of 2(.|\n)*Hint: (.|\n)*clone"):
        exercises.check_05_1(replay_all)


def test_05_1_refuses_a_list_and_a_replay_before_the_refill():
    def replay_too_early(graph, static_input: Tensor, static_result: Tensor, inputs: list[Tensor]) -> Tensor:
        results = []
        for tensor in inputs:
            graph.replay()
            static_input.copy_(tensor)
            results.append(static_result.clone())
        return torch.stack(results)

    with pytest.raises(NotYet, match="is 0 instead of 2(.|\n)*Refill, replay, then clone"):
        exercises.check_05_1(replay_too_early)
    with pytest.raises(NotYet, match="of type list; it should be a torch.Tensor"):
        exercises.check_05_1(lambda graph, static_input, static_result, inputs: inputs)


@pytest.fixture
def trained() -> tuple[MnistNet, Tensor]:
    torch.manual_seed(0)
    net, images = MnistNet().to(device), torch.randn(1000, 1, 28, 28, device=device)
    with torch.no_grad():
        net(images).argmax(dim=1)  # warm-up
    return net, images


def capture(net: MnistNet, images: Tensor):
    graph = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(graph):
        predictions = net(images).argmax(dim=1)
    return graph, predictions


def test_05_2_accepts_a_capture_in_evaluation_mode(trained, capsys):
    net, images = trained
    weights = copy.deepcopy(net.state_dict())
    graph, predictions = capture(net.eval(), images)
    exercises.check_05_2(graph, images, predictions, net.train())
    assert capsys.readouterr().out.startswith("Exercise 05.2: correct.")
    assert net.training
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, weights[name])


def test_05_2_refuses_training_mode(trained):
    net, images = trained
    graph, predictions = capture(net.train(), images)
    with pytest.raises(NotYet, match="`static_predictions` differs(.|\n)*Capture in evaluation mode"):
        exercises.check_05_2(graph, images, predictions, net)


def test_05_2_refuses_a_copy_of_the_network(trained):
    net, images = trained
    graph, predictions = capture(copy.deepcopy(net).eval(), images)
    with pytest.raises(NotYet, match="`static_predictions` differs(.|\n)*with `net` itself"):
        exercises.check_05_2(graph, images, predictions, net)


def test_05_2_refuses_a_network_left_in_evaluation_mode_and_no_answer(trained):
    net, images = trained
    graph, predictions = capture(net.eval(), images)
    with pytest.raises(NotYet, match="evaluation mode(.|\n)*net.train"):
        exercises.check_05_2(graph, images, predictions, net)
    with pytest.raises(NotYet, match="`static_predictions` is not filled in yet"):
        exercises.check_05_2(graph, images, None, net)
    with pytest.raises(NotYet, match="`prediction_graph` is not filled in yet"):
        exercises.check_05_2(..., images, predictions, net)
