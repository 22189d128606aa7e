"""The checks of notebooks 00 to 06: right answers pass, plausible wrong ones get a verdict that names their fault."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tutorial_utils import cuda_stand_in, exercises
from tutorial_utils.exercises import part1


def stub(*arguments):
    """What a learner finds."""
    ...


def raises(*arguments):
    raise KeyError("the answer's own error")


# 00.1: replay_for(graph, x, y, numbers)


def replay_for(graph, x, y, numbers):
    return [(x.fill_(number), graph.replay(), y.item())[-1] for number in numbers]


def replay_for_moved_name(graph, x, y, numbers):
    values = []
    for number in numbers:
        x = torch.tensor(number)  # noqa: F841  the mistake
        graph.replay()
        values.append(y.item())
    return values


# 02.3: run(graph, x, scale, y, batches); `centre` and `halve` return what the loop calls `x` and `scale` from then on


def centred(centre=lambda x: x.sub_(x.mean()), halve=lambda scale: scale.div_(2), keep=torch.clone):
    def run(graph, x, scale, y, batches):
        kept = []
        for batch in batches:
            x.copy_(batch)
            x, scale = centre(x), halve(scale)
            graph.replay()
            kept.append(keep(y))
        return kept

    return run


def by_data(tensor, value):
    tensor.data = value
    return tensor


# 01.2: mean_loss(step, steps)


def mean_loss(step, steps):
    total = 0.0
    for _ in range(steps):
        total += step().detach()
    return (total / steps).item()


def mean_loss_with_loop_variable(step, steps):
    total = torch.zeros(())
    for _ in range(steps):
        loss = step()
        total += loss.detach()
    return float(total) / steps


def mean_loss_with_graphs(step, steps):
    total = 0.0
    for _ in range(steps):
        total += step()
    return (total / steps).item()


def mean_loss_copied(step, steps):
    return torch.stack([step().detach() for _ in range(steps)]).mean().cpu().item()


def mean_loss_without_gradients(step, steps):
    with torch.no_grad():
        return sum(step() for _ in range(steps)).item() / steps


def mean_loss_printed(step, steps):
    losses = [step().detach() for _ in range(steps)]
    _ = f"first loss {losses[0]:.3f}"
    return torch.stack(losses).mean().item()


def mean_loss_of_a_list(step, steps):
    return torch.tensor([step().detach() for _ in range(steps)]).mean().item()


# 02.1: refill_both(static_images, static_targets, images, targets)


BOTH = ("images", "targets")


def refill_both(static_images, static_targets, images, targets, shapes=BOTH, dtypes=BOTH):
    for name, batch, buffer in (("images", images, static_images), ("targets", targets, static_targets)):
        if name in shapes and batch.shape != buffer.shape or name in dtypes and batch.dtype != buffer.dtype:
            raise ValueError(name)
    static_images.copy_(images)
    static_targets.copy_(targets)


def refill_by_length(static_images, static_targets, images, targets):
    if len(images) != len(static_images) or len(targets) != len(static_targets):
        raise ValueError("length")
    if images.dtype != static_images.dtype or targets.dtype != static_targets.dtype:
        raise ValueError("dtype")
    static_images.copy_(images)
    static_targets.copy_(targets)


def refill_by_data(static_images, static_targets, images, targets):
    if images.shape != static_images.shape or targets.shape != static_targets.shape:
        raise ValueError("shape")
    static_images.data, static_targets.data = images, targets


def refill_by_name(static_images, static_targets, images, targets):
    static_images, static_targets = images, targets  # noqa: F841  the mistake


def refill_asserted(static_images, static_targets, images, targets):
    assert images.shape == static_images.shape and targets.shape == static_targets.shape
    refill_both(static_images, static_targets, images, targets)


def refill_in_turn(static_images, static_targets, images, targets):
    for batch, buffer in ((images, static_images), (targets, static_targets)):
        if batch.shape != buffer.shape or batch.dtype != buffer.dtype:
            raise ValueError("shape")
        buffer.copy_(batch)


# 02.2: update(mean, loss)


def update_under_no_grad(mean, loss):
    with torch.no_grad():
        mean += 0.1 * (loss - mean)


def update_by_data(mean, loss):
    mean.data = 0.9 * mean + 0.1 * loss.detach()


# 03.1: warm_up(net, optimizer, step)


def tensors_of(net, optimizer, skip=()):
    states = (state.items() for state in optimizer.state.values())
    return [*net.state_dict().values(), *(value for state in states for key, value in state if key not in skip)]


def warm_up(net, optimizer, step, *, times=3, save=torch.clone, tensors=tensors_of):
    kept = tensors(net, optimizer)
    saved = [save(tensor) for tensor in kept]
    for _ in range(times):
        step()
    for tensor, value in zip(kept, saved, strict=True):
        tensor.copy_(value)


def warm_up_with_zeros(net, optimizer, step):
    """The way of the notebook, right for an optimizer that has not trained."""
    weights = copy.deepcopy(net.state_dict())
    for _ in range(3):
        step()
    net.load_state_dict(weights)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def warm_up_with_state_dicts(net, optimizer, step, **options):
    weights, state = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    for _ in range(3):
        step()
    net.load_state_dict(weights, **options)
    optimizer.load_state_dict(state)


def warm_up_by_data(net, optimizer, step):
    saved = [parameter.detach().clone() for parameter in net.parameters()]
    warm_up(net, optimizer, step)
    for parameter, value in zip(net.parameters(), saved, strict=True):
        parameter.data.add_(1)  # what the graph reads
        parameter.data = value


# 04.2: capture_scaling(cuda, static_x); every variant captures the product of what `make` returns


def scaling(make, returns=lambda graph, factor, scaled: (graph, factor, scaled)):
    def capture_scaling(cuda, static_x):
        factor, left, right = make(static_x)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            scaled = (left() if callable(left) else left) * (right() if callable(right) else right)
        return returns(graph, factor, scaled)

    return capture_scaling


def right_factors(static_x):
    factor = torch.ones(())
    return factor, static_x, factor


def baked_in(static_x):
    factor = torch.ones(())
    return factor, static_x, factor.item()


def read_in_the_capture(static_x):
    factor = torch.ones(())
    return factor, static_x, factor.item


def a_copy_of_x(static_x):
    factor = torch.ones(())
    return factor, static_x.clone(), factor


def factor_made_in_the_capture(cuda, static_x):
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        factor = torch.ones(())
        scaled = static_x * factor
    graph.replay()
    return graph, factor, scaled


# 05.1: replay_all(graph, static_input, static_result, inputs)


def replay_all(graph, static_input, static_result, inputs, keep=torch.Tensor.clone, join=torch.stack):
    results = []
    for tensor in inputs:
        static_input.copy_(tensor)
        graph.replay()
        results.append(keep(static_result))
    return join(results)


def replay_too_early(graph, static_input, static_result, inputs):
    results = []
    for tensor in inputs:
        graph.replay()
        static_input.copy_(tensor)
        results.append(static_result.clone())
    return torch.stack(results)


# 05.2: capture_predictions(cuda, net, static_images)


def capture_predictions(cuda, net, static_images, mode=False, after=True, net_of=None, images_of=None):
    used, images = net_of(net) if net_of else net, images_of(static_images) if images_of else static_images
    used.train(mode)
    graph = cuda.CUDAGraph()
    with torch.no_grad(), cuda.graph(graph):
        predictions = used(images).argmax(dim=1)
    net.train(after)
    return graph, predictions


def capture_probabilities(cuda, net, static_images):
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        predictions = net.eval()(static_images)
    net.train()
    return graph, predictions


# 06.1: make_optimizer(net)


def sgd(lr, momentum=0.5, **options):
    return lambda net: torch.optim.SGD(net.parameters(), lr=lr() if callable(lr) else lr, momentum=momentum, **options)


def rate():
    return torch.tensor(0.01)


# 06.2: capture_step(cuda, net, images, targets)


def own(warm_ups=3, restore=True, zero=True, clip=0.1, lr=rate, decay=0.01, batch=torch.Tensor.detach, **options):
    """Return an answer; its arguments are what may be wrong in it."""

    def capture_step(cuda, net, images, targets):
        images, optimizer = batch(images), torch.optim.AdamW
        optimizer = optimizer(net.parameters(), lr(), weight_decay=decay, **{"capturable": True, **options})

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(net(images), targets)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            return loss.detach()

        snapshot = copy.deepcopy(net.state_dict())
        for _ in range(warm_ups):
            step()
        if restore == "parameters":
            snapshot |= {name: buffer.clone() for name, buffer in net.named_buffers()}
        if restore:
            net.load_state_dict(snapshot)
        for state in optimizer.state.values() if zero else ():
            for name, value in state.items():
                if zero is True or name != zero:
                    value.zero_()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            loss = step()
        return graph, optimizer, loss

    return capture_step


def own_with_sgd(cuda, net, images, targets):
    graph, _, loss = own()(cuda, net, images, targets)
    return graph, torch.optim.SGD(net.parameters(), lr=rate()), loss


def own_with_another_rate(cuda, net, images, targets):
    graph, optimizer, loss = own()(cuda, net, images, targets)
    optimizer.param_groups[0]["lr"] = rate()  # as load_state_dict does
    return graph, optimizer, loss


def own_loss_of_the_warm_up(cuda, net, images, targets):
    graph, optimizer, loss = own()(cuda, net, images, targets)
    return graph, optimizer, loss.clone()


def own_copy_of_the_net(cuda, net, images, targets):
    return own()(cuda, copy.deepcopy(net), images, targets)


def masked(losses):
    hard = losses > 2
    hard = hard | ~hard.any()
    return (losses * hard).sum() / hard.sum()


def chosen(losses, least=1):
    hard = losses > 2
    mean = (losses * hard).sum() / hard.sum().clamp(min=least)
    return torch.where(hard.any(), mean, losses.mean())


def selected(losses):
    hard = losses > 2
    return losses[hard | ~hard.any()].mean()


def branch(losses):
    hard = losses > 2
    if not hard.any():
        hard = torch.ones_like(hard)
    return (losses * hard).sum() / hard.sum()


def hard_step(reduce, steps=True, returns=lambda loss, right: (loss.detach(), right)):
    def training_step(net, optimizer, images, targets):
        optimizer.zero_grad(set_to_none=True)
        output = net(images)
        loss = reduce(nn.functional.cross_entropy(output, targets, reduction="none"))
        loss.backward()
        if steps:
            optimizer.step()
        return returns(loss, (output.argmax(1) == targets).sum())

    return training_step


RIGHT = [
    ("00.1", replay_for),
    ("01.1", lambda host_us, kernel_us: max(host_us, kernel_us) / kernel_us),
    ("01.1", lambda host_us, kernel_us: max(1, host_us / kernel_us)),
    ("01.2", mean_loss),
    ("01.2", mean_loss_copied),
    ("01.2", mean_loss_with_loop_variable),
    ("01.2", lambda step, steps: torch.stack([step().detach() for _ in range(steps)]).mean().item()),
    ("02.1", refill_both),
    ("02.2", lambda mean, loss: mean.mul_(0.9).add_(loss.detach(), alpha=0.1)),
    ("02.2", lambda mean, loss: mean.lerp_(loss.detach(), 0.1)),
    ("02.2", update_under_no_grad),
    ("03.1", warm_up),
    ("03.2", lambda start: start),
    ("02.3", centred()),
    ("02.3", centred(lambda x: x.copy_(x - x.mean()), lambda scale: scale.mul_(0.5))),
    ("03.3", {"b", "c", "e"}),
    ("03.3", "B, C, E"),
    ("04.1", {"b", "c", "f"}),
    ("04.1", "BCF"),
    ("04.2", scaling(right_factors)),
    ("04.2", scaling(lambda static_x: (factor := torch.ones(()), factor, static_x))),
    ("04.3", hard_step(masked)),
    ("04.3", hard_step(chosen)),
    ("04.3", hard_step(masked, returns=lambda loss, right: [loss, right])),
    ("05.1", replay_all),
    ("05.1", lambda graph, x, y, inputs: replay_all(graph, x, y, inputs, join=lambda all: torch.cat(all).view(-1, 3))),
    ("05.2", capture_predictions),
    ("06.1", sgd(rate, fused=True)),
    ("06.2", own()),
    ("06.2", own(fused=True)),
    ("06.2", own(foreach=True)),
]

WRONG = [
    ("01.2", mean_loss_without_gradients, "does not require grad"),
    ("01.2", mean_loss_printed, "the host read 2 times"),
    ("01.2", mean_loss_of_a_list, "the host read 5 times"),
    ("02.1", lambda a, b, x, y: refill_by_length(a, b, x, y), "images of one row does not raise"),
    ("00.1", replay_for_moved_name, r"list is \[1.0, 1.0, 1.0\].*Hint:.*`x = ...` only moves the name"),
    ("00.1", lambda graph, x, y, numbers: [torch.ones(2)] * 3, "not right"),
    ("00.1", lambda graph, x, y, numbers: [2.0, 4.0, 6.0], "which is not right.*replay, then append"),
    ("00.1", lambda graph, x, y, numbers: [2.0 * n for n in numbers], "with the check's graph"),
    ("00.1", lambda graph, x, y, numbers: [(x.fill_(n), graph.replay(), y)[-1] for n in numbers], r"`y.item\(\)`"),
    ("00.1", lambda graph, x, y, numbers: [(graph.replay(), x.fill_(n), y.item())[-1] for n in numbers], "not right"),
    ("00.1", lambda graph, x, y, numbers: torch.tensor([2.0, 4.0, 6.0]), "not right"),
    ("01.1", lambda host_us, kernel_us: host_us / kernel_us, r"largest_gain\(100, 400\) is 0.25.*the larger"),
    ("01.1", lambda host_us, kernel_us: (host_us + kernel_us) / kernel_us, r"largest_gain\(2000, 200\) is 11"),
    ("01.1", lambda host_us, kernel_us: kernel_us / max(host_us, kernel_us), "is 0.1.*it takes the kernels' time"),
    ("01.1", lambda host_us, kernel_us: host_us / 0, "raised ZeroDivisionError in the line `.*host_us / 0"),
    ("01.1", 10.0, "of type float; it should be a function"),
    ("01.2", mean_loss_with_graphs, "3 steps' autograd graphs were kept.*detach"),
    ("01.2", lambda step, steps: torch.stack([step() for _ in range(steps)]).mean().item(), "graphs were kept"),
    ("01.2", lambda step, steps: sum(step().item() for _ in range(steps)) / steps, "read 4 times.*after the loop"),
    ("01.2", lambda step, steps: sum(float(step().detach()) for _ in range(steps)) / steps, "read 4 times"),
    ("01.2", lambda step, steps: sum(step().detach() for _ in range(steps)) / steps, "read 0 times"),
    ("01.2", lambda step, steps: sum(step().detach() for _ in range(steps)).item(), "divide by `steps`"),
    ("01.2", lambda step, steps: step().item(), "the mean of 3, 2, 1 and 0.5 is 3.0"),
    ("02.1", refill_by_name, "not at the addresses.*`=` moves a name"),
    ("02.1", refill_by_data, "not at the addresses.*`.data` exchanges the memory"),
    ("02.1", lambda *all: all[0].copy_(all[2]), "not at the addresses of both buffers"),
    ("02.1", lambda *all: (all[0].copy_(all[2]), all[1].copy_(all[3])), "a short batch does not raise ValueError"),
    ("02.1", lambda *all: refill_both(*all, shapes=()), "a short batch does not raise ValueError"),
    (
        "02.1",
        lambda *all: refill_both(*all, shapes=("images",)),
        "a single target does not raise.*repeats a single row",
    ),
    (
        "02.1",
        lambda *all: refill_both(*all, dtypes=()),
        "a batch with float targets does not raise ValueError.*cuts 2.9 to 2.*dtypes",
    ),
    ("02.1", lambda *all: refill_both(*all, shapes=("targets",)), "images of one row does not raise ValueError"),
    ("02.1", lambda *all: refill_both(*all, dtypes=("targets",)), "a float64 batch does not raise ValueError"),
    ("02.1", refill_asserted, "a short batch does not raise ValueError"),
    ("02.1", refill_in_turn, "a single target: refused too late.*Compare all, then copy"),
    ("02.2", lambda mean, loss: 0.9 * mean + 0.1 * loss.detach(), "address of `mean` is 2.0.*`mean = ...`"),
    ("02.2", update_by_data, "address of `mean` is 2.0.*`mean.data = ...` go elsewhere"),
    ("02.2", lambda mean, loss: mean.mul_(0.9).add_(loss, alpha=0.1), r"keeps the autograd graph.*loss.detach\(\)"),
    ("02.2", lambda mean, loss: mean.copy_(0.9 * mean + 0.1 * loss), "keeps the autograd graph of every step"),
    ("02.2", lambda mean, loss: mean.fill_(0.9 * mean.item() + 0.1 * loss.item()), "read a value, which no captured"),
    ("02.2", lambda mean, loss: mean.mul_(0.1).add_(loss.detach(), alpha=0.9), "which is not right"),
    ("02.3", centred(lambda x: x - x.mean(), lambda scale: scale / 2), "after the first batch is wrong.*Two lines"),
    ("02.3", centred(centre=lambda x: x - x.mean()), "after the first batch is wrong.*in place"),
    ("02.3", centred(halve=lambda scale: scale / 2), "after the first batch is wrong"),
    ("02.3", centred(halve=lambda scale: by_data(scale, scale / 2)), "after the first batch is wrong"),
    ("02.3", centred(keep=lambda y: y), "after the first batch is wrong"),
    ("02.3", lambda graph, x, scale, y, batches: y, "does not return a list"),
    ("03.1", warm_up_with_zeros, "with SGD, `momentum_buffer of 0.weight` is not restored at its address"),
    ("03.1", warm_up_with_state_dicts, "with SGD, `momentum_buffer of 0.weight` is not restored.*`copy_` it back"),
    ("03.1", lambda *all: warm_up_with_state_dicts(*all, assign=True), "with SGD, `0.weight` is not restored"),
    ("03.1", warm_up_by_data, "with SGD, `0.weight` is not restored at its address"),
    ("03.1", lambda *all: warm_up(*all, save=torch.detach), "with SGD, `0.weight` is not restored.*Save a clone"),
    (
        "03.1",
        lambda *all: warm_up(*all, tensors=lambda net, optimizer: [p.detach() for p in net.parameters()]),
        "with SGD, `1.running_mean` is not restored",
    ),
    (
        "03.1",
        lambda *all: warm_up(*all, tensors=lambda *both: tensors_of(*both, skip=["step"])),
        "with Adam, `step of 0.weight` is not restored.*also Adam's `step`",
    ),
    ("03.1", lambda *all: warm_up(*all, times=2), r"it calls `step\(\)` 2 times, not 3"),
    ("03.1", lambda net, optimizer, step: None, r"it calls `step\(\)` 0 times, not 3"),
    ("03.2", lambda start: start - 1, r"warm_ups_needed\(3\) is 2.*Which branch"),
    ("03.2", lambda start: start + 1, r"warm_ups_needed\(3\) is 4.*Would fewer steps do"),
    ("03.2", lambda start: 3, r"warm_ups_needed\(1\) is 3"),
    ("03.2", lambda start: max(start, 3), r"warm_ups_needed\(1\) is 3"),
    ("03.3", {"b", "c"}, "1 of the letters is.*which stream waits"),
    ("03.3", {"a", "d", "f"}, "6 of the letters are"),
    ("03.3", {"b", "c", "e", "d"}, "1 of the letters is"),
    ("04.1", {"b", "c", "e", "f"}, "1 of the letters is.*no Python"),
    ("04.1", {"b", "c"}, "1 of the letters is"),
    ("04.1", list("abcdefg"), "4 of the letters are"),
    ("04.2", scaling(lambda static_x: (1.0, static_x, 1.0)), "`factor` is of type float, not a torch.Tensor"),
    (
        "04.2",
        scaling(lambda static_x: (torch.ones(1), static_x, torch.ones(1))),
        "`factor` is wrong.*before the capture|Make it first",
    ),
    ("04.2", scaling(lambda static_x: (torch.tensor(1), static_x, 1)), "`factor` is wrong"),
    ("04.2", scaling(baked_in), r"after a change of `factor` is wrong.*a number is baked in"),
    ("04.2", scaling(read_in_the_capture), "raised AcceleratorError.*operations on tensors"),
    ("04.2", factor_made_in_the_capture, "after a change of `factor` is wrong.*Make `factor` first"),
    ("04.2", scaling(a_copy_of_x), "after a change of `static_x` is wrong.*`static_x` itself"),
    ("04.2", scaling(right_factors, lambda *all: all[:2]), "does not return `graph, factor, scaled`"),
    ("04.2", scaling(right_factors, lambda *all: all[::-1]), r"`graph` is a `cuda.CUDAGraph\(\)`"),
    ("04.3", hard_step(branch), r"raised AcceleratorError in the line `loss = reduce\(.*not permitted.*device choose"),
    ("04.3", hard_step(selected), "raised AcceleratorError.*not permitted"),
    ("04.3", hard_step(torch.mean), "with some hard images, the loss is wrong"),
    ("04.3", hard_step(lambda losses: (losses * (losses > 2)).sum()), "with some hard images, the loss is wrong"),
    ("04.3", hard_step(lambda losses: chosen(losses) * (losses > 2).any()), "with no hard images, the loss is wrong"),
    ("04.3", hard_step(lambda losses: chosen(losses, least=0)), "with no hard images, the new weight is wrong.*0 / 0"),
    ("04.3", hard_step(masked, steps=False), "with some hard images, the new weight is wrong.*still there"),
    ("04.3", hard_step(masked, returns=lambda loss, right: (loss.item(), right)), "raised AcceleratorError"),
    ("04.3", hard_step(masked, returns=lambda loss, right: loss.detach()), "does not return a loss and a count"),
    ("04.3", hard_step(masked, returns=lambda loss, right: (loss, right / 4)), "the count is wrong"),
    ("05.1", lambda *all: replay_all(*all, keep=lambda result: result), "what it returns is wrong.*then clone"),
    ("05.1", replay_too_early, "what it returns is wrong.*Refill, replay, then clone"),
    ("05.1", lambda *all: torch.stack(all[3]) * 2, "what it returns is wrong"),
    ("05.1", lambda *all: replay_all(*all, join=list), "is of type list, not a torch.Tensor.*torch.stack"),
    ("05.1", lambda *all: replay_all(*all, keep=torch.Tensor.tolist, join=torch.tensor), "the host read a value"),
    (
        "05.1",
        lambda *all: replay_all(*all, keep=lambda r: torch.tensor([v.item() for v in r])),
        "the host read a value",
    ),
    ("05.2", lambda *all: capture_predictions(*all, mode=True), r"what it predicts is wrong.*net.eval\(\).*before"),
    ("05.2", capture_probabilities, "what it predicts is wrong.*argmax"),
    ("05.2", lambda *all: capture_predictions(*all, after=False), r"in evaluation mode.*net.train\(\)"),
    ("05.2", lambda *all: capture_predictions(*all, net_of=copy.deepcopy), "with new images and weights.*themselves"),
    ("05.2", lambda *all: capture_predictions(*all, images_of=torch.clone), "with new images and weights.*themselves"),
    ("05.2", lambda *all: capture_predictions(*all)[1], "does not return `graph, static_predictions`"),
    ("06.1", sgd(0.01), "the learning rate is of type float, not a torch.Tensor.*Make `lr` a float32"),
    ("06.1", sgd(0.01, fused=True), "the learning rate is of type float"),
    ("06.1", sgd(rate), "only a fused SGD reads.*fused=True"),
    ("06.1", sgd(lambda: torch.tensor(0.1), fused=True), "the learning rate is wrong"),
    ("06.1", sgd(rate, momentum=0.0, fused=True), "the momentum is 0.0.*Keep SGD"),
    ("06.1", lambda net: torch.optim.Adam(net.parameters(), lr=rate(), fused=True), "the momentum is None"),
    ("06.1", lambda net: net.parameters(), "the learning rate is of type NoneType"),
    ("06.2", own(lr=lambda: 0.01), "the learning rate is of type float.*`lr` a float32 tensor"),
    ("06.2", own(lr=lambda: torch.tensor(0.1)), "the learning rate is wrong"),
    ("06.2", own(capturable=False), "raised RuntimeError in the line `loss = step.*capturable is False"),
    ("06.2", own(warm_ups=0), "at step 2, AdamW's `step` of `0.weight` is not eager's.*Warm up"),
    ("06.2", own(restore=False), "at step 1, the buffer `1.running_mean` is not eager's"),
    ("06.2", own(restore="parameters"), "at step 1, the buffer `1.running_mean`.*put"),
    ("06.2", own(zero=False), "at step 1, AdamW's `step` of `0.weight`.*to zero in place"),
    ("06.2", own(zero="step"), "at step 1, AdamW's `step` of `0.weight`"),
    ("06.2", own(zero="exp_avg_sq"), "at step 1, AdamW's `exp_avg_sq` of `0.weight`"),
    ("06.2", own(clip=None), "at step 1, the gradient of `0.weight`.*clip_grad_norm_"),
    ("06.2", own(clip=1.0), "at step 1, the gradient of `0.weight`.*0.1"),
    ("06.2", own(decay=0.1), "at step 1, the parameter `0.weight`.*defaults"),
    ("06.2", own(batch=torch.clone), "at step 2, the buffer `1.running_mean`"),
    ("06.2", own_with_another_rate, "at step 2, the parameter `0.weight`"),
    ("06.2", own_with_sgd, "is no AdamW"),
    ("06.2", own_loss_of_the_warm_up, "at step 1, the loss is not eager's"),
    ("06.2", own_copy_of_the_net, "at step 1, the buffer `1.running_mean`"),
]
FUNCTIONS = [
    "00.1",
    "01.1",
    "01.2",
    "02.1",
    "02.2",
    "02.3",
    "03.1",
    "03.2",
    "04.2",
    "04.3",
    "05.1",
    "05.2",
    "06.1",
    "06.2",
]
WRONG += [
    (number, raises, "`raises` raised KeyError in the line `raise KeyError") for number in FUNCTIONS if number != "02.1"
]
WRONG += [("02.1", raises, "raised KeyError")]
WRONG += [(number, stub, "Hint: ") for number in FUNCTIONS]
WRONG += [(number, ..., "there is no answer yet.*above the check") for number in ("03.3", "04.1")]


def check_of(number):
    return getattr(exercises, "check_" + number.replace(".", "_"))


@pytest.mark.parametrize(("number", "answer"), RIGHT)
def test_a_right_answer_is_correct(number, answer, capsys):
    check_of(number)(answer)
    assert re.fullmatch(rf"Exercise {number}: correct\. \S.+\.\n", capsys.readouterr().out)


@pytest.mark.parametrize(("number", "answer", "phrase"), WRONG)
def test_a_wrong_answer_is_not_yet(number, answer, phrase, capsys):
    check_of(number)(answer)
    printed = capsys.readouterr().out
    assert printed.startswith(f"Exercise {number}: not yet: ")
    assert re.search(phrase, printed, re.DOTALL), printed


def test_every_check_has_right_answers_and_at_least_three_wrong_ones():
    numbers = {name.removeprefix("check_").replace("_", ".") for name in vars(part1) if name.startswith("check_")}
    assert len(numbers) == 16 and numbers == {number for number, _ in RIGHT}
    assert all(sum(wrong[0] == number for wrong in WRONG) >= 4 for number in numbers)


@pytest.mark.parametrize(("number", "answer"), [*RIGHT, *((number, stub) for number in FUNCTIONS)])
def test_a_check_leaves_generator_and_answer_as_they_were(number, answer, capsys):
    state, before = torch.get_rng_state(), copy.copy(answer)
    check_of(number)(answer)
    assert torch.equal(torch.get_rng_state(), state) and answer == before


def test_no_letter_is_given_away(capsys):
    for check in (exercises.check_03_3, exercises.check_04_1):
        check({"g"})
        assert not re.search(r"\b[a-g]\b(?! set)", capsys.readouterr().out.partition("Hint")[0].partition("not yet")[2])


@pytest.mark.parametrize("number", FUNCTIONS)
def test_an_error_of_the_check_itself_is_raised(number, monkeypatch):
    def broken(*arguments, **options):
        raise LookupError("a fault of the check")

    for name in ("call", "result"):
        monkeypatch.setattr(part1, name, broken)
    with pytest.raises(LookupError, match="a fault of the check"):
        check_of(number)(stub)


# The answers of 03.2 and 04.1, found by running them on the stand-in, and of 03.3, on queues of names.


def capture(function):
    graph = cuda_stand_in.CUDAGraph()
    with cuda_stand_in.graph(graph):
        return graph, function()


@pytest.mark.parametrize("start", [1, 3])
@pytest.mark.parametrize("warm_ups", range(5))
def test_03_2_is_what_a_capture_records(start, warm_ups):
    def run(replayed):
        weight, steps, means = torch.ones(3), [], []

        def step():
            weight.add_(1)
            steps.append(None)
            if len(steps) == start:
                means.append(weight.clone())
            elif len(steps) > start:
                means[0].lerp_(weight, 0.1)

        for _ in range(warm_ups):
            step()
        step = capture(step)[0].replay if replayed else step
        for _ in range(6):
            step()
        return torch.cat(means) if means else weight

    assert torch.equal(run(True), run(False)) == (warm_ups >= start)


class Queue:
    """A stream as the names of all work that is over when its next work begins."""

    host: set[str] = set()

    def __init__(self):
        self.over = set()

    def wait_stream(self, other):
        self.over |= other.over

    def synchronize(self):
        Queue.host |= self.over

    def launch(self, work):
        before = self.over | Queue.host
        self.over = before | {work}
        return before


@pytest.mark.parametrize(
    ("letter", "first", "inside", "second"),
    [
        ("a", "side.wait_stream(cuda.current_stream())", "", "cuda.current_stream().wait_stream(side)"),
        ("b", "cuda.current_stream().wait_stream(side)", "", "cuda.current_stream().wait_stream(side)"),
        ("c", "side.wait_stream(cuda.current_stream())", "", "side.wait_stream(cuda.current_stream())"),
        ("d", "cuda.synchronize()", "", "cuda.synchronize()"),
        ("e", "", "side.wait_stream(cuda.current_stream())", "cuda.current_stream().wait_stream(side)"),
        ("f", "side.wait_stream(cuda.current_stream())", "", "side.synchronize()"),
    ],
)
def test_03_3_is_where_an_order_is_missing(letter, first, inside, second, monkeypatch):
    monkeypatch.setattr(Queue, "host", set())
    default, side = Queue(), Queue()
    current = [default]
    everything = SimpleNamespace(
        current_stream=lambda: current[-1], synchronize=lambda: [queue.synchronize() for queue in (default, side)]
    )
    names = {"side": side, "cuda": everything}
    default.launch("copy")
    exec(first, names)
    current.append(side)
    exec(inside, names)
    ordered = "copy" in side.launch("train")
    current.pop()
    exec(second, names)
    ordered &= "train" in default.launch("load")
    assert ordered == (letter not in "bce")


def test_04_1_is_what_each_replay_repeats(capsys):
    static_x, running_mean, calls, history = torch.ones(3), torch.zeros(()), [], []

    def step():
        calls.append("a")
        static_x.mul_(1.01)
        total = static_x.sum()
        if len(calls) > 5:
            total = total * 2
        history.append(total)
        running_mean.lerp_(total, 0.1)
        print("total computed")

    graph, _ = capture(step)
    values = []
    for _ in range(10):
        graph.replay()
        values.append((static_x[0].item(), history[0].item(), running_mean.item()))
    assert len(calls) == len(history) == 1 and capsys.readouterr().out == "total computed\n"
    assert all(len(set(column)) == 10 for column in zip(*values, strict=True))  # b, c and f
    assert values[-1][1] == pytest.approx(3 * 1.01**10)  # without d


def test_the_solution_of_06_1_follows_its_scheduler():
    def train(make, captured):
        torch.manual_seed(0)
        net, x = nn.Linear(4, 3), torch.randn(8, 4)
        optimizer = make(net)
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2], gamma=0.1)

        def step():
            optimizer.zero_grad(set_to_none=True)
            net(x).square().sum().backward()
            optimizer.step()

        step()
        replay = capture(step)[0].replay if captured else step
        for _ in range(4):
            replay()
            scheduler.step()
        return net.weight.detach()

    eager = train(sgd(0.01), captured=False)
    torch.testing.assert_close(train(sgd(rate, fused=True), captured=True), eager)
    assert not torch.allclose(train(sgd(0.01), captured=True), eager)
