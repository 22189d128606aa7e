"""The checks of notebook 03: the right answer passes, plausible wrong ones are refused with a hint."""

import copy

import pytest
import torch

from tutorial_utils import cuda, device, exercises
from tutorial_utils.exercises import NotYet


def zero_momentum(optimizer):
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


def test_03_1_accepts_restoring_in_place(capsys):
    def restore(net, optimizer, snapshot):
        net.load_state_dict(snapshot)
        zero_momentum(optimizer)

    exercises.check_03_1(restore)
    assert capsys.readouterr().out.startswith("Exercise 03.1: correct.")


def test_03_1_refuses_assign():
    def restore(net, optimizer, snapshot):
        net.load_state_dict(snapshot, assign=True)
        zero_momentum(optimizer)

    with pytest.raises(NotYet, match="lies at another address(.|\n)*without `assign`"):
        exercises.check_03_1(restore)


def test_03_1_refuses_parameters_without_buffers():
    def restore(net, optimizer, snapshot):
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.copy_(snapshot[name])
        zero_momentum(optimizer)

    with pytest.raises(NotYet, match="`1.running_mean` differs(.|\n)*parameters and buffers"):
        exercises.check_03_1(restore)


def test_03_1_refuses_a_rebound_net():
    def restore(net, optimizer, snapshot):
        net = copy.deepcopy(net)
        net.load_state_dict(snapshot)
        zero_momentum(optimizer)

    with pytest.raises(NotYet, match="`0.weight` differs"):
        exercises.check_03_1(restore)


def test_03_1_refuses_a_cleared_optimizer():
    def restore(net, optimizer, snapshot):
        net.load_state_dict(snapshot)
        optimizer.state.clear()

    with pytest.raises(NotYet, match="gone or was replaced(.|\n)*zero_"):
        exercises.check_03_1(restore)


def test_03_1_refuses_momentum_left_as_it_is():
    with pytest.raises(NotYet, match="`momentum` differs"):
        exercises.check_03_1(lambda net, optimizer, snapshot: net.load_state_dict(snapshot))


def test_03_2_accepts_three(capsys):
    exercises.check_03_2(3)
    assert capsys.readouterr().out.startswith("Exercise 03.2: correct.")


@pytest.mark.parametrize("answer", [2, 4, 11])
def test_03_2_refuses_other_numbers(answer):
    with pytest.raises(NotYet, match="not the answer(.|\n)*Which branch"):
        exercises.check_03_2(answer)


@pytest.mark.parametrize("warm_ups", range(5))
def test_03_2_answer_is_what_a_capture_shows(warm_ups):
    """A graph captured after `warm_ups` steps keeps the average as eager steps do from 3 warm-ups on."""

    class AveragedWeights:
        def __init__(self):
            self.steps, self.mean = 0, None

        def update(self, parameters):
            self.steps += 1
            if self.steps == 3:
                self.mean = [p.detach().clone() for p in parameters]
            elif self.steps > 3:
                for mean, parameter in zip(self.mean, parameters, strict=True):
                    mean.lerp_(parameter.detach(), 0.1)

    weight, eager_weight = torch.ones(3, device=device), torch.ones(3, device=device)
    average, eager_average = AveragedWeights(), AveragedWeights()

    def step():
        weight.add_(1)
        average.update([weight])

    for _ in range(warm_ups):
        step()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()
    for _ in range(6):
        graph.replay()
    for _ in range(warm_ups + 6):
        eager_weight.add_(1)
        eager_average.update([eager_weight])
    same = average.mean is not None and torch.equal(average.mean[0], eager_average.mean[0])
    assert same == (warm_ups >= 3)
