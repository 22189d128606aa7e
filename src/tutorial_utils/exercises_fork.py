"""What the checks of the exercises on fork and wait are made of.

The answers are run twice: as TorchScript, and eagerly with other functions in the place of ``fork`` and ``wait``, which
run the tasks in an order of the check's choice and note what each of them did. A pool does the same for threads.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tutorial_utils.checking import call, expect_callable, expect_filled, fail, reason

SCHEDULES = ("at fork", "at wait", "in reverse")
"""When the tasks of an eager run are executed: at once, all at the first wait in order, or all in reverse order."""


def scripted(exercise: str, name: str, answer: Any) -> Any:
    """Return ``answer`` as TorchScript, or say why it is none."""
    expect_callable(exercise, name, answer)
    _refuse_scripted(exercise, name, answer, "function")
    try:
        return torch.jit.script(answer)
    except Exception as error:
        if "Cannot emit expr for: (dots)" in str(error):
            fail(exercise, f"`{name}` is not filled in yet.", "Replace the `...` in its body by your answer.")
        hint = "The check scripts your answer: use what TorchScript has, and annotate arguments that are no tensors."
        if "Could not match type Future" in str(error):
            hint = "An empty list of futures needs an annotation: `futures: list[torch.jit.Future[Tensor]] = []`."
        fail(exercise, f"`{name}` is no TorchScript: {reason(error)}", hint)


def _refuse_scripted(exercise: str, name: str, answer: Any, kind: str) -> None:
    if isinstance(answer, (torch.jit.ScriptFunction, torch.jit.ScriptModule)):
        hint = f"Leave out `torch.jit.script`: pass the plain {kind}; the check scripts it itself."
        fail(exercise, f"`{name}` is scripted already.", hint)


def expect_instance(exercise: str, name: str, value: Any, base: type[nn.Module], hint: str) -> None:
    """Require a module whose class, or a parent of it, has the name of ``base``.

    The name, because a notebook shows the base class in a cell of its own, and may have run the cell twice.
    """
    expect_filled(exercise, name, value)
    _refuse_scripted(exercise, name, value, "module")
    if base.__name__ not in [parent.__name__ for parent in type(value).__mro__]:
        fail(exercise, f"`{name}` is of type {type(value).__name__}; it should be a {base.__name__}.", hint)


def instance(exercise: str, name: str, answer: Any, base: type[nn.Module], argument: Any, hint: str) -> nn.Module:
    """Return ``answer(argument)``, or say that ``answer`` is no subclass of ``base`` with a ``forward`` of its own."""
    _refuse_scripted(exercise, name, answer, "class")
    if isinstance(answer, nn.Module):
        what = f"`{name}` is a module, an instance of {type(answer).__name__}."
        fail(exercise, what, "Pass the class itself, without parentheses; the check makes the instance.")
    expect_callable(exercise, name, answer)
    if isinstance(answer, type):
        bases = [parent for parent in answer.__mro__ if parent.__name__ == base.__name__]
        if not bases:
            begin = f"Begin it with `class {answer.__name__}({base.__name__}):`."
            fail(exercise, f"The class `{name}` is no subclass of {base.__name__}.", begin)
        if answer.forward is bases[0].forward:
            fail(exercise, f"`{name}` is not filled in yet: it has no `forward` of its own.", hint)
    module = call(exercise, f"{name}(...)", answer, argument, hint=hint)
    expect_instance(exercise, f"{name}(...)", module, base, hint)
    return module


def count(number: int, noun: str) -> str:
    """``no tasks``, ``1 task`` or ``2 tasks``."""
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"


class Task:
    """One task of an eager run, and its future: in TorchScript, a future has the method ``wait``, too."""

    def __init__(self, run: EagerRun, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.run, self.function, self.args, self.kwargs = run, function, args, kwargs
        self.done, self.value = False, None

    def execute(self) -> None:
        if not self.done:
            outer = self.run.current
            self.run.current = self if self in self.run.tasks or outer is None else outer
            try:
                self.value, self.done = self.function(*self.args, **self.kwargs), True
            finally:
                self.run.current = outer

    def wait(self) -> Any:
        return self.run.wait(self)

    def does_nothing(self) -> bool:
        """Whether the task returned what it was given."""
        given = list(_tensors([self.args, self.kwargs]))
        returned = [value.flatten() for value in _tensors(self.value)]
        return any(torch.equal(one.flatten(), value) for one in given for value in returned)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors(entry)


class EagerRun:
    """A call of an answer in Python, with its result, its tasks, and the number of them ahead of the first wait."""

    def __init__(self, schedule: str = "at wait", added: float = 0.0) -> None:
        """Every wait returns its task's value plus ``added``, so that a check sees whether the value is used."""
        self.schedule, self.added = schedule, added
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.ran: dict[str, list[Task | None]] = {}
        self.result: Any = None
        self._at_first_wait: int | None = None

    @property
    def started(self) -> int:
        return len(self.tasks) if self._at_first_wait is None else self._at_first_wait

    def fork(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Task:
        task = Task(self, function, *args, **kwargs)
        if self.current is None:
            self.tasks.append(task)
        if self.current is not None or self.schedule == "at fork":
            task.execute()
        return task

    def wait(self, future: Task) -> Any:
        if self.current is None:
            if self._at_first_wait is None:
                self._at_first_wait = len(self.tasks)
            for task in self.tasks[:: -1 if self.schedule == "in reverse" else 1]:
                task.execute()
        future.execute()
        return future.value + self.added if self.added and isinstance(future.value, (Tensor, float)) else future.value


def run_eagerly(
    exercise: str,
    name: str,
    answer: Callable[..., Any],
    x: Tensor,
    *,
    schedule: str = "at wait",
    added: float = 0.0,
    parts: dict[str, Sequence[nn.Module]] | None = None,
) -> EagerRun:
    """Call ``answer(x)`` in Python, its tasks executed by ``schedule``. Setting a seed in it is refused.

    For each of the ``parts`` of a network, ``ran`` holds the tasks in which its modules ran, None for the caller.
    """

    def seed(*_: Any) -> NoReturn:
        fail(exercise, f"`{name}` sets a seed itself.", "The caller sets the seed; leave `torch.manual_seed` out.")

    run = EagerRun(schedule, added)
    with _replaced(answer, {torch.jit.fork: run.fork, torch.jit.wait: run.wait, torch.manual_seed: seed}):
        hooks = []
        for part, modules in (parts or {}).items():
            ran = run.ran[part] = []
            hooks += [m.register_forward_pre_hook(lambda *_, ran=ran: ran.append(run.current)) for m in modules]
        try:
            run.result = call(exercise, f"{name}(x)", answer, x)
        finally:
            for hook in hooks:
                hook.remove()
    return run


@contextmanager
def _replaced(answer: Any, replacements: dict[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Replace functions in torch, and under any name in the globals and enclosing functions of the answer."""
    namespaces = {id(space): space for space in (vars(torch), vars(torch.jit), vars(torch.random))}
    cells = []
    for function in _functions(answer):
        space = getattr(function, "__globals__", {})
        namespaces[id(space)] = space
        cells += getattr(function, "__closure__", None) or ()
    undo: list[Callable[[], Any]] = []
    try:
        for original, replacement in replacements.items():
            for space in namespaces.values():
                for name in [name for name, value in space.items() if value is original]:
                    undo.append(lambda space=space, name=name, value=original: space.__setitem__(name, value))
                    space[name] = replacement
            for cell in cells:
                if _contents(cell) is original:
                    undo.append(lambda cell=cell, value=original: setattr(cell, "cell_contents", value))
                    cell.cell_contents = replacement
        yield
    finally:
        for step in undo:
            step()


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _functions(answer: Any) -> list[Any]:
    if not isinstance(answer, nn.Module):
        return [inspect.unwrap(getattr(answer, "__func__", answer))]
    classes = {base for module in answer.modules() for base in type(module).__mro__}
    own = [base for base in classes if not base.__module__.startswith("torch.")]
    return [inspect.unwrap(value) for base in own for value in vars(base).values() if inspect.isfunction(value)]


def expect_own_tasks(exercise: str, run: EagerRun, hint: str) -> None:
    """Require each part of the network to have run in a task of its own that was forked ahead of the first wait."""
    owners: dict[Task, str] = {}
    for part, tasks in run.ran.items():
        if not tasks or None in tasks:
            what = f"{part} runs in the caller, not in a task"
        elif not set(tasks) <= set(run.tasks[: run.started]):
            what = f"{part} is forked only after the first wait, when {count(run.started, 'task')} had started"
        elif shared := [owners[task] for task in tasks if task in owners]:
            what = f"{part} runs in the same task as {shared[0]}"
        else:
            owners |= dict.fromkeys(tasks, part)
            continue
        fail(exercise, f"The result is right, but {what}.", hint)


def expect_work_in_tasks(exercise: str, run: EagerRun, right: Tensor, hint: str) -> None:
    """Require of a run with 1 added to its tasks' values its result to be theirs, and each task to do something."""
    if not torch.allclose(run.result, right + run.added):
        fail(exercise, "The result is right, but it is not what the tasks return.", hint)
    if any(task.does_nothing() for task in run.tasks):
        fail(exercise, "The result is right, but a task only returns what it was given.", hint)


class HeldPool(ThreadPoolExecutor):
    """A pool of threads whose tasks begin when ``expected`` of them have been submitted.

    Where the caller waits earlier, in whatever way, nothing is submitted for ``patience`` seconds. Then the tasks
    begin, and ``at_first_wait`` is the number of them.
    """

    def __init__(self, expected: int, patience: float = 2.0) -> None:
        super().__init__(expected)
        self.expected, self.patience = expected, patience
        self.submitted = 0
        self.at_first_wait: int | None = None
        self._begin, self._here = threading.Event(), threading.local()

    @property
    def task(self) -> int | None:
        """The number of the task that runs in this thread, None in the caller."""
        return getattr(self._here, "task", None)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        future = super().submit(self._held, self.submitted, function, *args, **kwargs)
        if self.submitted >= self.expected:
            self.begin()
        return future

    def begin(self) -> None:
        self._begin.set()

    def _held(self, number: int, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        seen = self.submitted
        while not self._begin.wait(self.patience):
            if seen == self.submitted:
                self.at_first_wait = seen
                self.begin()
            seen = self.submitted
        self._here.task = number
        try:
            return function(*args, **kwargs)
        finally:
            self._here.task = None


def expect_one_lstm_per_task(exercise: str, pool: HeldPool, ran: list[tuple[int | None, bool]], hint: str) -> None:
    """Require as many tasks as the pool expects ahead of the first wait, and in each of them one call without a graph.

    ``ran`` holds for each call of an LSTM its task, None for the caller, and whether its output has a graph.
    """
    early = pool.submitted if pool.at_first_wait is None else pool.at_first_wait
    if early != pool.expected:
        when = "in all" if early == pool.submitted else "before the first wait"
        fail(exercise, f"The pool was given {count(early, 'task')} {when}, not {pool.expected}.", hint)
    tasks = [task for task, _ in ran]
    if None in tasks:
        what = f"Outside the pool's tasks, for example in the caller, an LSTM ran {count(tasks.count(None), 'time')}."
        fail(exercise, what, "Submit the method itself; with parentheses, `run_forward(x)` runs at once.")
    if sorted(tasks) != list(range(1, pool.expected + 1)):
        what = f"The LSTMs ran {len(tasks)} times in {count(len(set(tasks)), 'task')}"
        what += f", not {pool.expected} times in {pool.expected} tasks."
        fail(exercise, what, "Each task runs one direction of one model, once.")
    if any(graph for _, graph in ran):
        fail(exercise, "A task computed with gradients.", "`no_grad` does not reach a thread: set it in the task.")
