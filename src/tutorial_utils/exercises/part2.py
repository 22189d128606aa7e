"""The checks of the second part, in the order of the notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from tutorial_utils.checks import NotYet, call, check, equal, first_line, letters, require, result
from tutorial_utils.models import BidirectionalLSTM, LSTMEnsemble
from tutorial_utils.timeline import Span, Timeline


def expect_cases(answer: Any, cases: list[tuple[tuple[Any, ...], Any]], hint: str, tolerance: float = 0.0) -> None:
    """Require what ``answer`` should return for the arguments of each case."""
    for arguments, expected in cases:
        value, shown = result(answer, *deepcopy(arguments)), ", ".join(map(repr, arguments))
        equal(value, expected, f"{getattr(answer, '__name__', 'the answer')}({shown})", hint, tolerance)


def operations(block: Any) -> Iterator[Any]:
    """Yield the operations of a graph, in order; each loop turns twice, and tasks are not entered."""
    for node in block.nodes():
        yield node
        for inner in [*node.blocks()] * (2 if node.kind() == "prim::Loop" else 1):
            yield from operations(inner)


def steps(block: Any) -> Iterator[str]:
    """Yield what the operations of a graph are, in the order of :func:`operations`."""
    return (node.kind() for node in operations(block))


def in_task(fork: Any) -> list[str]:
    """Return what the operations of a forked task are, those of what it calls too."""
    task = fork.g("Subgraph").copy()
    torch._C._jit_pass_inline(task)
    return [*steps(task)]


def lstms_overlap(graph: Any) -> bool:
    """Say whether an LSTM starts, in the caller or in a task, while a task that holds one is not waited for."""
    under_way: set[str] = set()
    for node in operations(graph):
        task = in_task(node) if node.kind() == "prim::fork" else []
        if "aten::lstm" in (node.kind(), *task):
            if under_way:
                return True
            under_way |= {output.debugName() for output in node.outputs() if task}
        elif node.kind() == "aten::wait":
            under_way.discard(node.inputsAt(0).debugName())
    return False


def compiled(answer: Any, x: Tensor) -> Any:
    """Return ``answer``, a function or a Module of ``x``, as TorchScript."""
    result(answer, x)  # an error of Python's names its line
    try:
        return torch.jit.script(answer)
    except Exception as error:
        untyped = "Could not match type Future" in str(error)
        what = "it takes an empty list for a list of tensors." if untyped else first_line(error)
        way = "Annotate it with `list[torch.jit.Future[Tensor]]`." if untyped else "Script it alone to read all of it."
        raise NotYet(f"Python runs the answer, TorchScript does not: {what}", way) from None


def scripted(answer: Any, x: Tensor, hint: str) -> tuple[Any, list[str]]:
    """Return ``answer`` as TorchScript, and what its operations outside of tasks are.

    Require two or more forks in it, all before the first wait, and that no LSTM runs outside of tasks.
    """
    program = compiled(answer, x)
    kinds = list(steps(program.inlined_graph))
    before = kinds[: [*kinds, "aten::wait"].index("aten::wait")].count("prim::fork")
    what = f"{before or 'no'} task{'s' * (before != 1)} started before the first wait; all should."
    require(before >= max(2, kinds.count("prim::fork")), what, hint)
    require("aten::lstm" not in kinds, "an LSTM runs in the caller, outside of the tasks.", hint)
    return program, kinds


def loaded(answer: Any, argument: Any, plain: nn.Module, hint: str) -> nn.Module:
    """Return ``answer(argument)``, which must be a Module, with the weights of ``plain``."""
    is_class = isinstance(answer, type) and issubclass(answer, nn.Module)
    require(is_class, "the answer is not a class of Modules.", "Pass the class itself, not an instance of it.")
    model = call(answer, argument, hint=hint)
    call(model.load_state_dict, plain.state_dict(), hint=f"Make it a subclass of {type(plain).__name__}.")
    return model


def expect_forked(answer: Any, argument: Any, plain: nn.Module, right: Callable[[Tensor], Tensor], hint: str) -> None:
    """Require of ``answer(argument)``, with the weights of ``plain``, forks and the output that is ``right``."""
    model, x = loaded(answer, argument, plain, hint), torch.randn(5, 2, 8)
    with torch.no_grad():
        program, _ = scripted(model, x, hint)
        equal(result(program, x, hint=hint), right(x), "the output", hint)


@check("20.1", "As many tasks as columns, and all of them start before the first wait.")
def check_20_1(column_norms: Callable[[Tensor], Tensor]) -> None:
    hint = "Fork `norm` with each column, `x[:, k]`, in one loop; keep the futures, and wait for them in a second loop."
    x = torch.arange(28.0).reshape(4, 7)
    program, _ = scripted(column_norms, x, hint)
    equal(result(program, x, hint=hint), x.norm(dim=0), "the result for seven columns", hint, 1e-5)


@check("20.2", "The caller draws, in a fixed order; the tasks only compute, in any order.")
def check_20_2(noisy_pair: Callable[[Tensor], Tensor]) -> None:
    x, hint = torch.arange(1.0, 6.0), "Draw `[2, len(x)]` numbers before you fork; give each task `x` and one row."
    program, kinds = scripted(noisy_pair, x, hint)
    early = " ".join(kinds[: kinds.index("prim::fork")])
    draws = any(word in early for word in ("rand", "normal", "uniform"))
    require(draws, "the caller draws nothing before it forks. Which task draws first is left to the threads.", hint)
    pairs = []
    for seed, value in ((0, x), (1, x), (0, 11 * x)):
        torch.manual_seed(seed)
        pairs.append(result(program, value, hint=hint))
    equal(getattr(pairs[0], "shape", None), torch.Size([2, 5]), "the shape of the result", hint)
    differ = not torch.equal(pairs[0], pairs[1]) and not torch.equal(*pairs[0])
    require(differ, "two seeds give the same noise, or both rows have the same.", f"{hint} Set no seed yourself.")
    equal(pairs[2] - 10 * x, pairs[0], "the noise depends on `x`: the result", "Add the noise to `x`.", 1e-4)


@check("20.3", "The tasks change nothing, the caller adds, and every wait would have raised.")
def check_20_3(energy: Callable[[Tensor], Tensor]) -> None:
    hint = "Let each task return its own energy; wait for every future, then add the results."
    x = torch.arange(1.0, 13.0).reshape(4, 3)
    program, _ = scripted(energy, x, hint)
    graph = program.inlined_graph  # keeps its nodes alive
    edits = [kind for fork in graph.findAllNodes("prim::fork") for kind in in_task(fork) if kind.endswith("_")]
    require(not edits, f"a task edits a tensor in place, with `{(edits or [''])[0]}`; others may edit it, too.", hint)
    value = result(program, x, hint=hint)
    one = isinstance(value, Tensor) and value.numel() == 1
    equal(value.squeeze() if one else value, x.square().sum(), "the energy of four rows", hint, 1e-5)
    for row in range(len(x)):
        spoilt = x.index_fill(0, torch.tensor(row), torch.nan)
        try:
            program(spoilt)
        except (RuntimeError, torch.jit.Error) as error:
            require("not a number" in str(error), f"a NaN raises something else: {first_line(error)}", hint)
        else:
            raise NotYet(f"a NaN in row {row} of 0 to 3 raises nothing; the error of its task is lost.", hint)


@check("21.1", "The same weights in two modules, and the same output bit for bit.")
def check_21_1(from_library: Callable[[nn.LSTM], nn.Module]) -> None:
    hint = "Its size is `library.input_size`. Copy both directions' weights; the backward names end in `_reverse`."
    library, x = nn.LSTM(16, 16, bidirectional=True), torch.randn(6, 2, 16)
    model = result(from_library, deepcopy(library), hint=hint)
    require(isinstance(model, nn.Module), "it does not return a model.", hint)
    with torch.no_grad():
        equal(result(model, x, hint=hint), library(x)[0], "the output of the new model", hint)


@check("21.2", "At the source's size these are 168 billion, half of them in each direction.")
def check_21_2(multiply_adds: Callable[[int, int, int, int], int]) -> None:
    hint = "Two matrices of 4 * size rows and size columns; for each step, sequence, direction and model."
    expect_cases(multiply_adds, [((1, 1, 1, 1), 16), ((3, 5, 7, 2), 23520), ((50, 50, 1024, 4), 167772160000)], hint)


@check("22.1", "Only there does one direction start between the other's fork and its wait.")
def check_22_1(overlapping: Any) -> None:
    letters(overlapping, "bd", "Between a fork and its own wait, does anything start that takes long?")


@check("22.2", "One LSTM starts while a task runs the other, and no bit differs.")
def check_22_2(repaired: type[nn.Module]) -> None:
    hint = "Measure: which operators do the tasks run, and which thread runs `aten::lstm`?"
    plain = BidirectionalLSTM(8)
    model, x = loaded(repaired, 8, plain, hint), torch.randn(5, 2, 8)
    with torch.no_grad():
        program = compiled(model, x)
        graph = program.inlined_graph  # keeps its operations alive
        require(lstms_overlap(graph), "one LSTM at a time is under way, as without forks.", hint)
        half = "The forward half comes first; the backward one is flipped before and after its LSTM."
        equal(result(program, x), plain(x), "the output", half)


@check("23.1", "Order, gaps and intervals inside others change nothing.")
def check_23_1(overlap: Callable[[list[tuple[float, float]]], float]) -> None:
    hint = "Sort by start; only what lies beyond the latest end so far adds to the time in which any is busy."
    shifted, gap, inside = [(0, 100), (50, 150)], [(200, 300), (0, 100), (0, 100)], [(0, 100), (10, 20), (30, 40)]
    expect_cases(overlap, [((shifted,), 4 / 3), ((gap,), 1.5), ((inside,), 1.2)], hint, 1e-6)


@check("23.2", "The less time a thread works alone, the nearer is the overlap to 2.")
def check_23_2(alone_us: Callable[[Timeline], float]) -> None:
    hint = "The work counts the time in which two threads are busy twice, the busy time counts it once."
    for expected, a, b in ((100.0, (0, 100), (50, 150)), (200.0, (0, 100), (400, 500)), (250.0, (0, 300), (100, 150))):
        spans = [Span("work", lane, start, end - start, "operator") for lane, (start, end) in (("a", a), ("b", b))]
        equal(result(alone_us, Timeline(spans, ["a", "b"])), expected, f"for {a} and {b}, alone_us(trace)", hint, 1e-6)


@check("23.3", "Threads first, then the same moment, then what it gains.")
def check_23_3(diagnose: Callable[[Timeline, Timeline], str]) -> None:
    hint = "Ask in the order of the list: how many lanes hold bars, how many bars at once, and which call is shorter?"

    def recorded(*bars: tuple[str, float, float]) -> Timeline:
        return Timeline([Span("lstm", lane, start, end - start, "operator") for lane, start, end in bars], ["a", "b"])

    plain = recorded(("a", 0, 100), ("a", 100, 200))
    for second, end, expected in (
        (("a", 100, 200), 100, "one thread"),
        (("b", 100, 200), 100, "never together"),
        (("b", 5, 205), 200, "taking turns"),
        (("b", 10, 120), 110, "parallel"),
    ):
        value = result(diagnose, plain, recorded(("a", 0, end), second))
        equal(value, expected, f"for the bars {('a', 0, end)} and {second}, diagnose(...)", hint)


@check("24.1", "All models are tasks before anything waits, and a maximum is exact in any order.")
def check_24_1(answer: type[nn.Module]) -> None:
    hint = "Fork in one loop, each future into a typed list; wait in a second, and begin with the first output."
    nets = [BidirectionalLSTM(8) for _ in range(3)]
    expect_forked(answer, deepcopy(nets), LSTMEnsemble(nets), lambda x: torch.stack([n(x) for n in nets]).amax(0), hint)


@check("24.2", "The thread with the most tasks decides, or the cores: whichever allows less.")
def check_24_2(largest_gain: Callable[[int, int, int], float]) -> None:
    hint = "Divide the tasks by those of the busiest thread, which runs them in a row. Cores are a second limit."
    cases = {(8, 4, 16): 4.0, (8, 16, 16): 8.0, (8, 3, 16): 8 / 3, (5, 2, 16): 5 / 3, (8, 8, 3): 3.0, (8, 4, 2): 2.0}
    expect_cases(largest_gain, [*cases.items()], hint, 1e-6)


@check("25.1", "Intra-op times inter-op never exceeds the cores.")
def check_25_1(threads_for: Callable[[int, int], tuple[int, int]]) -> None:
    hint = "Inter-op: one thread for each task, but not more than cores. Intra-op: what is left for each, at least 1."
    expect_cases(threads_for, [((16, 8), (2, 8)), ((2, 8), (1, 2)), ((6, 4), (1, 4)), ((16, 1), (16, 1))], hint)


@check("25.2", "The tasks overlap, and their threads share the cores out.")
def check_25_2(repaired: Callable[[list[nn.Module], int], tuple[nn.Module, tuple[int, int]]]) -> None:
    models, x = [BidirectionalLSTM(8) for _ in range(4)], torch.randn(5, 2, 8)
    for cores in (16, 2):
        value = result(repaired, deepcopy(models), cores)
        pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], nn.Module)
        what = "`repaired` returns something else than a program and a pair of numbers."
        require(pair, what, "Return (program, (intra_op, inter_op)).")
        program, numbers = value
        scripts = isinstance(program, torch.jit.ScriptModule)
        require(scripts, "nobody scripted the program.", "In plain Python, fork runs its task at once, in the caller.")
        hint = "Fork all models in one loop, wait for them in a second one."
        with torch.no_grad():
            scripted(program, x, hint)
            equal(result(program, x, hint=hint), LSTMEnsemble(models)(x), "the output", hint)
        numbers = tuple(numbers) if isinstance(numbers, (tuple, list)) else numbers
        hint = f"Rule 2: {len(models)} tasks, {cores} cores; intra-op comes first."
        equal(numbers, (max(1, cores // len(models)), min(len(models), cores)), f"the pair for {cores} cores", hint)


class CountingPool(ThreadPoolExecutor):
    """A pool that counts its tasks; ``early`` of them had been submitted when a result was first asked for."""

    submitted = early = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future = super().submit(function, *args, **kwargs)
        wait = future.result

        def result(timeout: float | None = None) -> Any:
            self.early = self.early or self.submitted
            return wait(timeout)

        future.result = result
        return future


@check("26.1", "Eight tasks start before the first wait, none builds a graph, and no bit differs.")
def check_26_1(run_directions: Callable[..., Tensor]) -> None:
    hint = "Submit each `model.run_...` itself, not its result, and keep all futures before you ask one of them."
    net, x, graphs = LSTMEnsemble([BidirectionalLSTM(4) for _ in range(4)]), torch.randn(3, 2, 4), []
    with torch.no_grad(), CountingPool(8) as pool:
        expected = net(x)
        for lstm in [lstm for model in net.models for lstm in model.children()]:
            lstm.register_forward_hook(lambda module, inputs, output: graphs.append(output[0].requires_grad))
        output = result(run_directions, [*net.models], x, pool, hint=hint)
    what = f"tasks at the first wait: {pool.early}, in all: {pool.submitted}; there should be 8."
    require((pool.early, pool.submitted) == (8, 8), what, hint)
    require(not any(graphs), "a task builds a graph for gradients.", "`no_grad` reaches no thread: set it in the task.")
    equal(output, expected, "the result", "Concatenate the directions in dimension 2, and sum the models.")


@check("26.2", "It agrees with nn.RNN, and vmap runs three networks as one.")
def check_26_2(rnn: Callable[..., Tensor]) -> None:
    hint = "Begin with zeros of shape [B, H]. Stack a list of the states: vmap refuses to write them into a tensor."
    networks, x = [nn.RNN(3, 5) for _ in range(3)], torch.randn(7, 2, 3)
    weights = [torch.stack(same).detach() for same in zip(*(net.parameters() for net in networks), strict=True)]
    right = torch.stack([network(x)[0] for network in networks]).detach()
    equal(result(rnn, x, *(weight[0] for weight in weights), hint=hint), right[0], "rnn(x, ...)", hint, 1e-5)
    together = call(torch.func.vmap(rnn, in_dims=(None, 0, 0, 0, 0)), x, *weights, hint=hint)
    equal(together, right, "rnn under vmap", hint, 1e-5)


WAYS = ("leave it", "batch", "threads", "processes", "stack and graph", "streams", "export")
TASKS_ON_FULL_CORES = "Nine times as fast with 16 cores: they are busy already, and tasks would only share them."
LAUNCHES = "The GPU waits for the host's launches, 560 a call. Tasks leave as many to launch."
LOCK = "Between two small operators a thread needs Python's lock, and the others wait."
WHY_NOT = {
    ("A", "threads"): TASKS_ON_FULL_CORES,
    ("A", "processes"): TASKS_ON_FULL_CORES,
    ("A", "batch"): "One request at a time: nothing is there to be batched, and waiting for it takes time.",
    ("B", "streams"): LAUNCHES,
    ("B", "threads"): LAUNCHES,
    ("C", "threads"): LOCK,
    ("C", "leave it"): "One core works, fifteen are idle.",
    ("C", "stack and graph"): "There is no GPU, and the models are unlike.",
}


@check("27.1", "Busy cores are left alone, launches go into a graph, and Python gets processes.")
def check_27_1(choice: dict[str, str]) -> None:
    right = {"A": "leave it", "B": "stack and graph", "C": "processes"}
    hint = f"The ways are {', '.join(WAYS)}."
    require(isinstance(choice, dict) and right.keys() <= choice.keys(), "a workload has no way.", hint)
    require(... not in choice.values(), "there is no answer for a workload yet.", hint)
    for workload, way in right.items():
        given = choice[workload]
        require(given in WAYS, f"for {workload}, {given!r} is not one of the ways.", hint)
        why_not = WHY_NOT.get((workload, given), "Follow the tree from its root, with the numbers of the description.")
        require(given == way, f"for {workload}, {given!r} is not the best way.", why_not)
