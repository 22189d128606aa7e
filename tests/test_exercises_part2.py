"""The checks of notebooks 20 to 27: right answers are correct, and the wrong ones that are likely get their hint."""

from __future__ import annotations

import functools
import math
from concurrent.futures import as_completed

import pytest
import torch
from torch import Tensor, nn

from tutorial_utils import exercises
from tutorial_utils.exercises import part2
from tutorial_utils.models import BidirectionalLSTM, ForkedBidirectionalLSTM, LSTMEnsemble

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated")


def verdict(capsys, number, answer):
    getattr(exercises, f"check_{number.replace('.', '_')}")(answer)
    printed = capsys.readouterr().out
    assert printed.startswith(f"Exercise {number}: ") and len(printed.splitlines()) <= 2
    return printed.removeprefix(f"Exercise {number}: ")


# --- 20.1: one task per column


def norm(column: Tensor) -> Tensor:
    return column.square().sum().sqrt()


def norms_loop(x: Tensor) -> Tensor:
    futures: list[torch.jit.Future[Tensor]] = []
    for column in range(x.size(1)):
        futures.append(torch.jit.fork(norm, x[:, column]))
    results: list[Tensor] = []
    for future in futures:
        results.append(future.wait())
    return torch.stack(results)


def norms_comprehension(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(norm, x[:, column]) for column in range(x.size(1))]
    return torch.stack([torch.jit.wait(future) for future in futures])


def norms_wait_in_the_loop(x: Tensor) -> Tensor:
    return torch.stack([torch.jit.wait(torch.jit.fork(norm, x[:, k])) for k in range(x.size(1))])


def norms_without_tasks(x: Tensor) -> Tensor:
    return torch.stack([norm(x[:, k]) for k in range(x.size(1))])


def norms_of_rows(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(norm, x[row]) for row in range(x.size(0))]
    return torch.stack([torch.jit.wait(future) for future in futures])


def norms_of_three(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(norm, x[:, column]) for column in range(3)]
    return torch.stack([torch.jit.wait(future) for future in futures])


def norms_untyped(x: Tensor) -> Tensor:
    futures = []
    for column in range(x.size(1)):
        futures.append(torch.jit.fork(norm, x[:, column]))
    return torch.stack([torch.jit.wait(future) for future in futures])


def norms_lambda(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(lambda column: column.norm(), x[:, k]) for k in range(x.size(1))]
    return torch.stack([torch.jit.wait(future) for future in futures])


def norms_columns_of_a_list(x: Tensor) -> Tensor:
    return torch.stack([torch.jit.wait(torch.jit.fork(norm, x[:, k])) for k in x.columns])


# --- 20.2: two noises, one seed


def add_noise(x: Tensor, noise: Tensor) -> Tensor:
    return x + noise


def add_some_noise(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def pair_drawn_first(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first, second = torch.jit.fork(add_noise, x, noise[0]), torch.jit.fork(add_noise, x, noise[1])
    return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])


def pair_drawn_at_each_fork(x: Tensor) -> Tensor:
    first = torch.jit.fork(add_noise, x, torch.randn_like(x))
    second = torch.jit.fork(add_noise, x, torch.randn_like(x))
    return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])


def pair_drawn_in_tasks(x: Tensor) -> Tensor:
    first, second = torch.jit.fork(add_some_noise, x), torch.jit.fork(add_some_noise, x)
    return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])


def pair_of_one_noise(x: Tensor) -> Tensor:
    noise = torch.rand_like(x)
    first, second = torch.jit.fork(add_noise, x, noise), torch.jit.fork(add_noise, x, noise)
    return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])


def pair_seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    noise = torch.rand(2, x.size(0))
    first, second = torch.jit.fork(add_noise, x, noise[0]), torch.jit.fork(add_noise, x, noise[1])
    return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])


def pair_in_turn(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first = torch.jit.wait(torch.jit.fork(add_noise, x, noise[0]))
    return torch.stack([first, torch.jit.wait(torch.jit.fork(add_noise, x, noise[1]))])


def pair_without_tasks(x: Tensor) -> Tensor:
    return x + torch.rand(2, x.size(0))


def pair_in_one_row(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first, second = torch.jit.fork(add_noise, x, noise[0]), torch.jit.fork(add_noise, x, noise[1])
    return torch.cat([torch.jit.wait(first), torch.jit.wait(second)])


def pair_of_noises(x: Tensor) -> Tensor:
    noise = torch.rand(2, x.size(0))
    first, second = torch.jit.fork(add_noise, noise[0], noise[0]), torch.jit.fork(add_noise, noise[1], noise[1])
    return torch.stack([torch.jit.wait(first), torch.jit.wait(second)])


# --- 20.3: two faults in a listing


def row_energy(row: Tensor) -> Tensor:
    if bool(row.isnan().any()):
        raise ValueError("not a number")
    return row.square().sum()


def unchecked_energy(row: Tensor) -> Tensor:
    return row.square().sum()


def add_energy(total: Tensor, row: Tensor) -> Tensor:
    total += row_energy(row)
    return total


def energy_stacked(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(row_energy, x[row]) for row in range(x.size(0))]
    return torch.stack([torch.jit.wait(future) for future in futures]).sum()


def energy_added_by_the_caller(x: Tensor) -> Tensor:
    total = torch.zeros(1)
    futures = [torch.jit.fork(row_energy, x[row]) for row in range(x.size(0))]
    for future in futures:
        total += torch.jit.wait(future)
    return total


def energy_of_the_listing(x: Tensor) -> Tensor:
    total = torch.zeros(1)
    futures: list[torch.jit.Future[Tensor]] = []
    for row in range(x.size(0)):
        futures.append(torch.jit.fork(add_energy, total, x[row]))
    return torch.jit.wait(futures[-1])


def energy_raced_for(x: Tensor) -> Tensor:
    total = torch.zeros(1)
    futures = [torch.jit.fork(add_energy, total, x[row]) for row in range(x.size(0))]
    for future in futures:
        torch.jit.wait(future)
    return total


def energy_of_the_last_row(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(row_energy, x[row]) for row in range(x.size(0))]
    return torch.jit.wait(futures[-1])


def energy_with_lost_errors(x: Tensor) -> Tensor:
    tests = [torch.jit.fork(row_energy, x[row]) for row in range(x.size(0))]
    futures = [torch.jit.fork(unchecked_energy, x[row]) for row in range(x.size(0))]
    torch.jit.wait(tests[-1])
    return torch.stack([torch.jit.wait(future) for future in futures]).sum()


def energy_unchecked(x: Tensor) -> Tensor:
    futures = [torch.jit.fork(unchecked_energy, x[row]) for row in range(x.size(0))]
    return torch.stack([torch.jit.wait(future) for future in futures]).sum()


def energy_in_turn(x: Tensor) -> Tensor:
    return torch.stack([torch.jit.wait(torch.jit.fork(row_energy, x[row])) for row in range(x.size(0))]).sum()


# --- 21: the ensemble


def from_library(library, forward="", backward="_reverse", parts=("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
    model = BidirectionalLSTM(library.input_size)
    weights = dict(library.named_parameters())
    with torch.no_grad():
        for lstm, end in ((model.forward_lstm, forward), (model.backward_lstm, backward)):
            for part in parts:
                getattr(lstm, f"{part}_l0").copy_(weights[f"{part}_l0{end}"])
    return model


def multiply_adds(steps, batch, size, models, *, factor=16):
    return factor * steps * batch * size**2 * models


# --- 22.2: forks that do not help


class BothForked(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.fork(self.run_forward, x)
        backwards = torch.jit.fork(self.run_backward, x)
        return torch.cat([torch.jit.wait(forwards), torch.jit.wait(backwards)], dim=2)


class BackwardFirst(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(self.run_backward, x), torch.jit.fork(self.run_forward, x)]
        return torch.cat([torch.jit.wait(futures[1]), torch.jit.wait(futures[0])], dim=2)


class ForkedInAList(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(self.run_forward, x)]
        backwards = self.run_backward(x)
        return torch.cat([torch.jit.wait(future) for future in futures] + [backwards], dim=2)


class ForksTheFlips(BidirectionalLSTM):
    """The notebook's own: both LSTMs run in the caller."""

    def turn(self, x: Tensor) -> Tensor:
        return torch.flip(x, dims=[0])

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.jit.fork(self.turn, x)
        left, _ = self.forward_lstm(x)
        right, _ = self.backward_lstm(torch.jit.wait(turned))
        back = torch.jit.fork(self.turn, right)
        return torch.cat([left, torch.jit.wait(back)], dim=2)


class ForksTooLate(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        backwards = self.run_backward(x)
        return torch.cat([torch.jit.wait(torch.jit.fork(self.run_forward, x)), backwards], dim=2)


class WaitsTooSoon(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.wait(torch.jit.fork(self.run_forward, x))
        return torch.cat([forwards, self.run_backward(x)], dim=2)


class NotFlippedBack(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.run_forward, x)
        backwards, _ = self.backward_lstm(torch.flip(x, dims=[0]))
        return torch.cat([torch.jit.wait(future), backwards], dim=2)


class HasALambda(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        return (lambda y: y)(super().forward(x))


class WaitsInBetween(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards = torch.jit.wait(torch.jit.fork(self.run_forward, x))
        return torch.cat([forwards, torch.jit.wait(torch.jit.fork(self.run_backward, x))], dim=2)


class SwappedHalves(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        forwards, backwards = torch.jit.fork(self.run_forward, x), torch.jit.fork(self.run_backward, x)
        return torch.cat([torch.jit.wait(backwards), torch.jit.wait(forwards)], dim=2)


class NoSuchMethod(BidirectionalLSTM):
    def forward(self, x: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(self.run_both, x))


class NoSubclass(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lstm = nn.LSTM(size, size, bidirectional=True)


# --- 23: the timeline


def diagnose(plain, forked):
    if len({span.lane for span in forked.spans}) == 1:
        return "one thread"
    if forked.most_at_once(forked.spans) == 1:
        return "never together"
    return "taking turns" if forked.duration_us >= plain.duration_us else "parallel"


def diagnose_by_overlap(plain, forked):
    return "parallel" if forked.busy_lanes() > 1 else diagnose(plain, forked)


def overlap(intervals):
    intervals.sort()  # in place: the check's own list must not suffer
    work, any_busy, reached = 0.0, 0.0, -math.inf
    for start, end in intervals:
        work += end - start
        any_busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return work / any_busy


def overlap_of_the_whole(intervals):
    starts, ends = zip(*intervals, strict=True)
    return sum(end - start for start, end in intervals) / (max(ends) - min(starts))


def overlap_unsorted(intervals):
    any_busy, reached = 0.0, -math.inf
    for start, end in intervals:
        any_busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return sum(end - start for start, end in intervals) / any_busy


def overlap_that_shrinks(intervals):
    any_busy, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        any_busy += max(0.0, end - max(start, reached))
        reached = end  # also where the interval lies inside an earlier one
    return sum(end - start for start, end in intervals) / any_busy


def work_us(trace):
    return sum(span.duration_us for span in trace.spans)


def busy_us(trace):
    return work_us(trace) / trace.busy_lanes()


# --- 24.1: the largest of the outputs


class LargestEnsemble(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures: list[torch.jit.Future[Tensor]] = []
        for model in self.models:
            futures.append(torch.jit.fork(model, x))
        largest = torch.jit.wait(futures[0])
        for future in futures[1:]:
            largest = torch.maximum(largest, torch.jit.wait(future))
        return largest


class LargestOfNested(LSTMEnsemble):
    """Each model's task forks a direction and waits for it: the forks and waits of a task are its own."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__([ForkedBidirectionalLSTM(8) for _ in models])

    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.stack([torch.jit.wait(future) for future in futures]).amax(dim=0)


class StubOfLargest(LSTMEnsemble):
    """The largest."""


class LargestWaitsInLoop(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for model in self.models:
            outputs.append(torch.jit.wait(torch.jit.fork(model, x)))
        return torch.stack(outputs).amax(dim=0)


class LargestUntyped(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = []
        for model in self.models:
            futures.append(torch.jit.fork(model, x))
        return torch.stack([torch.jit.wait(future) for future in futures]).amax(dim=0)


class ForkedSum(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.stack([torch.jit.wait(future) for future in futures]).sum(dim=0)


class LargestOfTwo(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        return torch.maximum(torch.jit.wait(futures[0]), torch.jit.wait(futures[1]))


class LargestWithAfterthought(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        futures = [torch.jit.fork(model, x) for model in self.models]
        first = torch.jit.wait(futures[0])
        again = torch.jit.wait(torch.jit.fork(self.models[0], x))
        others = torch.stack([torch.jit.wait(future) for future in futures[1:]]).amax(dim=0)
        return torch.maximum(torch.maximum(first, again), others)


class LargestWithOneInTheCaller(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.jit.fork(self.models[0], x), torch.jit.fork(self.models[1], x)
        third = self.models[2](x)
        return torch.maximum(torch.maximum(torch.jit.wait(first), torch.jit.wait(second)), third)


class LargestWithoutTasks(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).amax(dim=0)


# --- 25: threads


def threads_for(cores, tasks):
    return max(1, cores // tasks), min(tasks, cores)


class WaitsInTheLoop(LSTMEnsemble):
    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for model in self.models:
            outputs.append(torch.jit.wait(torch.jit.fork(model, x)))
        return torch.stack(outputs).sum(dim=0)


def repaired(models, cores, ensemble=ForkedSum, script=torch.jit.script, threads=threads_for):
    return script(ensemble(models)), threads(cores, len(models))


# --- 26.1: threads for both levels


def without_gradient(direction, x):
    with torch.no_grad():
        return direction(x)


def submitted(models, x, pool, task=without_gradient):
    return [(pool.submit(task, m.run_forward, x), pool.submit(task, m.run_backward, x)) for m in models]


def run_directions(models, x, pool, task=without_gradient):
    pairs = [[future.result() for future in pair] for pair in submitted(models, x, pool, task)]
    return torch.stack([torch.cat(pair, dim=2) for pair in pairs]).sum(dim=0)


def run_directions_as_completed(models, x, pool):
    futures = [future for pair in submitted(models, x, pool) for future in pair]
    done = {future: future.result() for future in as_completed(futures)}
    pairs = zip(futures[0::2], futures[1::2], strict=True)
    return torch.stack([torch.cat([done[a], done[b]], dim=2) for a, b in pairs]).sum(dim=0)


def run_directions_in_turn(models, x, pool):
    outputs = []
    for model in models:
        ((one, two),) = submitted([model], x, pool)
        outputs.append(torch.cat([one.result(), two.result()], dim=2))
    return torch.stack(outputs).sum(dim=0)


def run_models(models, x, pool):
    futures = [pool.submit(without_gradient, model, x) for model in models]
    return torch.stack([future.result() for future in futures]).sum(dim=0)


def run_at_once(models, x, pool):
    return [pool.submit(model.run_forward(x)) for model in models][0].result()


def run_half(models, x, pool):
    futures = [pool.submit(without_gradient, model.run_forward, x) for model in models]
    outputs = [torch.cat([f.result(), m.run_backward(x)], dim=2) for f, m in zip(futures, models, strict=True)]
    return torch.stack(outputs).sum(dim=0)


def run_swapped(models, x, pool):
    pairs = [[future.result() for future in reversed(pair)] for pair in submitted(models, x, pool)]
    return torch.stack([torch.cat(pair, dim=2) for pair in pairs]).sum(dim=0)


# --- 26.2: a cell by hand


def rnn(x, w_ih, w_hh, b_ih, b_hh):
    h, states = torch.zeros_like(x[0] @ w_ih.T), []
    for step in x:
        h = torch.tanh(step @ w_ih.T + b_ih + h @ w_hh.T + b_hh)
        states.append(h)
    return torch.stack(states)


def rnn_into_a_tensor(x, w_ih, w_hh, b_ih, b_hh):
    states, h = torch.zeros(len(x), x.shape[1], len(w_hh)), torch.zeros(x.shape[1], len(w_hh))
    for t, step in enumerate(x):
        h = torch.tanh(step @ w_ih.T + b_ih + h @ w_hh.T + b_hh)
        states[t] = h
    return states


def rnn_with_one_bias(x, w_ih, w_hh, b_ih, b_hh):
    return rnn(x, w_ih, w_hh, b_ih, torch.zeros_like(b_hh))


def rnn_last_state(x, w_ih, w_hh, b_ih, b_hh):
    return rnn(x, w_ih, w_hh, b_ih, b_hh)[-1]


def rnn_of_the_inputs_size(x, w_ih, w_hh, b_ih, b_hh):
    return torch.tanh(x[0] @ w_ih.T + b_ih + torch.zeros_like(x[0]) @ w_hh.T + b_hh)


# --- 27.1: a way for each workload

CHOICE = {"A": "leave it", "B": "stack and graph", "C": "processes"}


RIGHT = [
    ("20.1", norms_loop),
    ("20.1", norms_comprehension),
    ("20.2", pair_drawn_first),
    ("20.2", pair_drawn_at_each_fork),
    ("20.3", energy_stacked),
    ("20.3", energy_added_by_the_caller),
    ("21.1", from_library),
    ("21.2", multiply_adds),
    ("21.2", functools.partial(multiply_adds, factor=16)),
    ("22.1", {"b", "d"}),
    ("22.1", "db"),
    ("22.2", BothForked),
    ("22.2", BackwardFirst),
    ("22.2", ForkedBidirectionalLSTM),
    ("22.2", ForkedInAList),
    ("23.1", overlap),
    ("23.2", lambda trace: 2 * busy_us(trace) - work_us(trace)),
    ("23.2", lambda trace: busy_us(trace) * (2 - trace.busy_lanes())),
    ("23.3", diagnose),
    ("24.1", LargestEnsemble),
    ("24.2", lambda tasks, threads, cores: min(tasks / math.ceil(tasks / threads), cores)),
    ("25.1", threads_for),
    ("25.1", lambda cores, tasks: [cores // min(tasks, cores), min(tasks, cores)]),
    ("25.2", repaired),
    ("25.2", lambda models, cores: (torch.jit.script(ForkedSum(models)), [*threads_for(cores, 4)])),
    ("26.1", run_directions),
    ("26.1", run_directions_as_completed),
    ("26.2", rnn),
    ("27.1", CHOICE),
]


@pytest.mark.parametrize(("number", "answer"), RIGHT)
def test_a_right_answer_is_correct(capsys, number, answer):
    assert verdict(capsys, number, answer).startswith("correct. ")


def raises(*arguments):
    return {}["missing"]


def stub(*arguments):
    """Return something."""


LETTERS = [
    (set(), "the set is empty"),
    ("a b c d e f", "of the letters are missing or too much"),
    (3, "it should be a set of letters"),
    ({1, 2}, "it should be a set of letters"),
    (..., "no answer yet"),
]
WRONG = {
    "20.1": [
        (stub, "`stub` returns nothing yet"),
        (raises, """raised KeyError in the line `return {}["missing"]`"""),
        (norms_wait_in_the_loop, "1 task started before the first wait"),
        (norms_without_tasks, "no tasks started before the first wait"),
        (norms_untyped, "takes an empty list for a list of tensors"),
        (norms_of_rows, "the result for seven columns is wrong"),
        (norms_of_three, "the result for seven columns is wrong"),
        (norms_lambda, "TorchScript does not: Lambda aren't supported"),
        (norms_columns_of_a_list, "raised AttributeError in the line `return torch.stack("),
        (torch.ones(3), "of type Tensor; it should be a function"),
    ],
    "20.2": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (pair_drawn_in_tasks, "the caller draws nothing before it forks"),
        (pair_of_one_noise, "or both rows have the same"),
        (pair_seeded, "two seeds give the same noise"),
        (pair_in_turn, "1 task started before the first wait"),
        (pair_without_tasks, "no tasks started"),
        (pair_in_one_row, "the shape of the result is torch.Size([10])"),
        (pair_of_noises, "Add the noise to `x`"),
    ],
    "20.3": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (energy_of_the_listing, "a task edits a tensor in place, with `aten::add_`"),
        (energy_raced_for, "a task edits a tensor in place, with `aten::add_`"),
        (energy_of_the_last_row, "the energy of four rows is wrong"),
        (energy_with_lost_errors, "a NaN in row 0 of 0 to 3 raises nothing"),
        (energy_unchecked, "a NaN in row 0 of 0 to 3 raises nothing"),
        (energy_in_turn, "1 task started before the first wait"),
    ],
    "21.1": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (lambda library: from_library(library, backward=""), "the backward names end in `_reverse`"),
        (lambda library: from_library(library, "_reverse", ""), "the output of the new model is wrong"),
        (lambda library: from_library(library, parts=("weight_ih", "weight_hh")), "Copy both directions' weights"),
        (lambda library: BidirectionalLSTM(library.input_size), "the output of the new model is wrong"),
        (lambda library: library, "of type tuple"),
    ],
    "21.2": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (lambda *sizes: multiply_adds(*sizes, factor=8), "(1, 1, 1, 1) is 8, which is not right"),
        (lambda *sizes: multiply_adds(*sizes, factor=32), "Two matrices of 4 * size rows"),
        (lambda steps, batch, size, models: 16 * steps * batch * size * models, "(3, 5, 7, 2) is 3360"),
        (lambda steps, batch, size, models: 16 * batch * size**2 * models, "for each step, sequence, direction"),
        (lambda steps: 1, "raised TypeError"),
    ],
    "22.1": [*LETTERS, ({"b"}, "1 of the letters is"), ({"b", "c", "d"}, "1 of the letters is"), ("a", "3 of the")],
    "22.2": [
        (ForksTheFlips, "one LSTM at a time is under way"),
        (BidirectionalLSTM, "one LSTM at a time is under way"),
        (WaitsTooSoon, "one LSTM at a time is under way"),
        (ForksTooLate, "one LSTM at a time is under way"),
        (WaitsInBetween, "one LSTM at a time is under way"),
        (SwappedHalves, "the output is wrong"),
        (NotFlippedBack, "the output is wrong"),
        (HasALambda, "Python runs the answer, TorchScript does not"),
        (raises, "the answer is not a class"),
        (NoSuchMethod, "raised AttributeError in the line `return torch.jit.wait("),
        (BothForked(8), "Pass the class itself"),
        (NoSubclass, "Make it a subclass of BidirectionalLSTM"),
    ],
    "23.1": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (overlap_of_the_whole, "overlap_of_the_whole([(200, 300), (0, 100), (0, 100)]) is 1.0"),
        (overlap_unsorted, "Sort by start"),
        (overlap_that_shrinks, "only what lies beyond the latest end so far"),
        (lambda intervals: 1.0, "is 1.0, which is not right"),
    ],
    "23.2": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (busy_us, "for (0, 100) and (50, 150), alone_us(trace) is 150.0"),
        (lambda trace: work_us(trace) - busy_us(trace), "is 50.0, which is not right"),
        (lambda trace: 2 * trace.duration_us - work_us(trace), "for (0, 100) and (400, 500)"),
        (work_us, "counts the time in which two threads are busy twice"),
    ],
    "23.3": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (lambda plain, forked: "one thread", "is 'one thread', which is not right"),
        (lambda plain, forked: diagnose(forked, plain), "for the bars ('a', 0, 100) and ('b', 100, 200)"),
        (diagnose_by_overlap, "for the bars ('a', 0, 200) and ('b', 5, 205)"),
    ],
    "24.1": [
        (StubOfLargest, "no tasks started before the first wait"),
        (raises, "the answer is not a class"),
        (NoSubclass, "raised TypeError"),
        (LargestWaitsInLoop, "1 task started before the first wait"),
        (LargestWithAfterthought, "3 tasks started before the first wait; all should"),
        (LargestWithOneInTheCaller, "an LSTM runs in the caller"),
        (
            LargestUntyped,
            "list of tensors.\n  Hint: Annotate",
        ),
        (ForkedSum, "the output is wrong"),
        (LargestOfTwo, "the output is wrong"),
        (LargestWithoutTasks, "no tasks started before the first wait"),
        (LargestEnsemble([]), "Pass the class itself"),
    ],
    "24.2": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (lambda tasks, threads, cores: threads, "(8, 16, 16) is 16"),
        (lambda tasks, threads, cores: min(tasks, threads, cores), "(8, 3, 16) is 3"),
        (lambda tasks, threads, cores: tasks / math.ceil(tasks / threads), "(8, 8, 3) is 8.0"),
        (lambda tasks, threads, cores: tasks / math.ceil(tasks / min(threads, cores)), "(8, 8, 3) is 2.66"),
        (lambda tasks, threads, cores: tasks / (tasks // threads or 1), "Divide the tasks by those of the busiest"),
        (lambda tasks, threads, cores: math.ceil(tasks / threads), "(8, 4, 16) is 2"),
    ],
    "25.1": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (lambda cores, tasks: (cores, cores), "(16, 8) is (16, 16)"),
        (lambda cores, tasks: (cores // tasks, tasks), "(2, 8) is (0, 8)"),
        (lambda cores, tasks: (max(1, cores // tasks), tasks), "not more than cores"),
        (lambda cores, tasks: (cores / min(tasks, cores), min(tasks, cores)), "(6, 4) is (1.5, 4)"),
        (lambda cores, tasks: (min(tasks, cores), max(1, cores // tasks)), "(16, 8) is (8, 2)"),
    ],
    "25.2": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (lambda models, cores: torch.jit.script(ForkedSum(models)), "something else than a program and a pair"),
        (functools.partial(repaired, script=lambda program: program), "nobody scripted the program"),
        (functools.partial(repaired, ensemble=WaitsInTheLoop), "1 task started before the first wait"),
        (functools.partial(repaired, ensemble=LSTMEnsemble), "no tasks started before the first wait"),
        (functools.partial(repaired, ensemble=LargestEnsemble), "the output is wrong"),
        (functools.partial(repaired, threads=lambda cores, tasks: (cores, cores)), "for 16 cores is (16, 16)"),
        (functools.partial(repaired, threads=lambda cores, tasks: (4, 4)), "for 2 cores is (4, 4)"),
        (functools.partial(repaired, threads=lambda cores, tasks: threads_for(cores, tasks)[::-1]), "intra-op comes"),
    ],
    "26.1": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (functools.partial(run_directions, task=lambda direction, x: direction(x)), "set it in the task"),
        (run_directions_in_turn, "tasks at the first wait: 2, in all: 8"),
        (run_models, "tasks at the first wait: 4, in all: 4"),
        (run_half, "tasks at the first wait: 4, in all: 4"),
        (run_at_once, "Submit each `model.run_...` itself, not its result"),
        (run_swapped, "the result is wrong"),
        (submitted, "tasks at the first wait: 0"),
    ],
    "26.2": [
        (stub, "`stub` returns nothing yet"),
        (raises, "raised KeyError"),
        (rnn_into_a_tensor, "raised RuntimeError in the line `states[t] = h`: vmap"),
        (rnn_with_one_bias, "rnn(x, ...) is wrong"),
        (rnn_last_state, "rnn(x, ...) is wrong"),
        (rnn_of_the_inputs_size, "raised RuntimeError"),
    ],
    "27.1": [
        (raises, "a workload has no way"),
        (dict.fromkeys("ABC", ...), "no answer for a workload yet"),
        (dict(zip("AB", CHOICE.values(), strict=False)), "a workload has no way"),
        (CHOICE | {"B": "graph"}, "for B, 'graph' is not one of the ways.\n  Hint: The ways are leave it, batch"),
        (CHOICE | {"A": "threads"}, "they are busy already"),
        (CHOICE | {"A": "batch"}, "One request at a time"),
        (CHOICE | {"B": "streams"}, "The GPU waits for the host's launches"),
        (CHOICE | {"C": "threads"}, "needs Python's lock"),
        (CHOICE | {"C": "export"}, "Follow the tree from its root"),
    ],
}


@pytest.mark.parametrize(
    ("number", "answer", "said"), [(number, *case) for number, cases in WRONG.items() for case in cases]
)
def test_a_wrong_answer_is_told_what_is_wrong(capsys, number, answer, said):
    printed = verdict(capsys, number, answer)
    assert printed.startswith("not yet: ") and said in printed
    hints = [line for line in printed.splitlines() if line.startswith("  Hint: ")]
    assert hints or answer is raises or "raised" in said or "should be a function" in said


def test_every_check_has_right_and_wrong_answers():
    checks = {name[6:].replace("_", ".") for name in vars(part2) if name.startswith("check_2")}
    assert checks == set(WRONG) == {number for number, _ in RIGHT} and len(checks) >= 15
    assert min(map(len, WRONG.values())) >= 5


@pytest.mark.parametrize("number", ["22.1"])
def test_letters_are_not_given_away(capsys, number):
    """What all letters, and each alone, are told, is the number of wrong ones."""
    right = dict(RIGHT)[number].replace(", ", "").lower()
    for letter in "abcdef":
        printed = verdict(capsys, number, {letter})
        assert f": {letter}" not in printed and "'" not in printed.partition("Hint")[0]
        assert f"{len(set(right) ^ {letter})} of the letters" in printed


@pytest.mark.parametrize(("number", "answer"), [*dict(RIGHT).items(), ("20.2", pair_seeded), ("21.1", raises)])
def test_a_check_leaves_generators_modes_and_answers_as_they_were(capsys, number, answer):
    torch.manual_seed(1)
    before, copied = torch.get_rng_state(), set(answer) if isinstance(answer, (set, str)) else None
    first = verdict(capsys, number, answer)
    assert torch.equal(torch.get_rng_state(), before) and torch.is_grad_enabled()
    assert copied is None or set(answer) == copied
    assert verdict(capsys, number, answer) == first  # also an answer that changes its arguments


def test_forks_inside_a_task_are_its_own():
    """A task's forks and waits do not count among the caller's, whose own are in order."""
    _, kinds = part2.scripted(LargestOfNested([None] * 3), torch.randn(5, 2, 8), "")
    assert kinds.count("prim::fork") == 3 and "aten::lstm" not in kinds


@pytest.mark.parametrize(("number", "helper"), [("20.1", "steps"), ("24.2", "equal"), ("26.1", "CountingPool")])
def test_a_crash_of_the_check_itself_raises(monkeypatch, number, helper):
    def broken(*arguments):
        raise ZeroDivisionError("a fault of the check")

    monkeypatch.setattr(part2, helper, broken)
    with pytest.raises(ZeroDivisionError, match="a fault of the check"):
        getattr(exercises, f"check_{number.replace('.', '_')}")(dict(RIGHT)[number])
