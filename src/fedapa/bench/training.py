"""Training and evaluating one client on one core: the plain loop, the torch engine and the native one."""

from __future__ import annotations

from dataclasses import replace

from fedapa.bench import image_data, plain
from fedapa.bench.fixtures import Bed, How, dense_flops, make_bed, network
from fedapa.bench.side_by_side import Row, gemm, interleaved, rate, ratio, threads
from fedapa.methods.catalogue import make
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import simulate
from fedapa.training.local import Local, count_correct
from fedapa.training.objective import Classification
from fedapa.training.settings import Training
from fedapa.training.task import Task, task_loss

SETS = {"cifar10": ("CIFAR-10", 5.0), "fmnist": ("Fashion-MNIST", 7.0)}
RECIPES = {
    "class weights and smoothed labels": (
        Training(epochs=1),
        Classification(label_smoothing=0.1, class_weights=[0.5, 2.0] * 5),
    ),
    "clipping": (Training(epochs=1, clip_norm=1.0), Classification()),
    "Adam": (Training(0.001, epochs=1, optimizer="adam"), Classification()),
}
METHODS = ("fedproto", "fedpac", "dbe", "fedphp", "apple", "fedala", "fedamp", "ditto")


def training(how: How) -> list[Row]:
    """Cross-entropy training of LeNet-5 on the same batches."""
    return [_training(name, how) for name in SETS]


def _training(name: str, how: How) -> Row:
    title, target = SETS[name]
    bed = make_bed(image_data.equal(name, 1, how.pick(2048, 256)))
    model = network(bed.torch, bed.data, bed.start)
    batches = list(bed.local(bed.torch).batches(1))
    loader = plain.in_batches(plain.samples(bed.torch, bed.own), batches)
    product, flops = gemm()
    ways = {
        "plain": lambda: plain.train(model, plain.optimiser(model, bed.torch.training), loader),
        "torch": lambda: bed.local(bed.torch).sgd(task_loss, bed.start),
        "native": lambda: bed.local(bed.native).sgd(task_loss, bed.start),
        "gemm": lambda: [product() for _ in range(how.pick(10, 1))],
    }
    with threads():
        found = interleaved(ways, how.pick(9, 2))
    count = sum(len(index) for index in batches)
    peak = rate(flops * how.pick(10, 1), found["gemm"]).median
    work = dense_flops(model, bed.torch.prepare(bed.own.x[:1])[0])
    detail = {
        "data": bed.data.name,
        "samples per second": {way: round(rate(count, found[way]).median) for way in ("plain", "torch", "native")},
        "torch engine against plain": ratio(found["plain"], found["torch"]).median,
        "GEMM peak GFLOP/s": peak / 1e9,
        "share of the GEMM peak, dense arithmetic": rate(count * work / peak, found["native"]).median,
    }
    what = f"native training, LeNet-5, {title}, one core, against the plain loop"
    return Row("train", what, ratio(found["plain"], found["native"]), "x", target, detail=detail)


def recipes(how: How) -> list[Row]:
    """Training by other recipes than the paper's: native against the torch engine."""
    bed = make_bed(image_data.equal("cifar10", 1, how.pick(2048, 256)))
    return [_recipe(name, bed, how) for name in RECIPES]


def _recipe(name: str, bed: Bed, how: How) -> Row:
    training, objective = RECIPES[name]

    def train(task: Task) -> None:
        bed.local(replace(task, training=training, objective=objective)).sgd(task_loss, bed.start)

    with threads():
        found = interleaved({"torch": lambda: train(bed.torch), "native": lambda: train(bed.native)}, how.pick(7, 2))
    speeds = {way: round(rate(len(bed.own.y), found[way]).median) for way in found}
    what = f"{name}, training of LeNet-5, CIFAR-10, one core, native against torch engine"
    detail = {"data": bed.data.name, "samples per second": speeds}
    return Row("recipes", what, ratio(found["torch"], found["native"]), "x", 5.0, detail=detail)


def evaluation(how: How) -> list[Row]:
    """Right answers on one core: native against torch with batches of 256."""
    return [_evaluation(name, how) for name in SETS]


def _evaluation(name: str, how: How) -> Row:
    bed = make_bed(image_data.equal(name, 1, how.pick(2048, 256)))
    model, floats = network(bed.torch, bed.data, bed.start), bed.torch.prepare(bed.own.x)
    ways = {
        "torch": lambda: plain.count_correct_sliced(model, floats, bed.own.y),
        "native": lambda: count_correct(lambda x: bed.native.predict(bed.start, x), bed.own)[0],
    }
    with threads():
        found = interleaved(ways, how.pick(9, 2))
    speeds = {way: round(rate(len(floats), found[way]).median) for way in ways}
    what = f"native evaluation, LeNet-5, {SETS[name][0]}, one core, against torch in batches of 256"
    detail = {"data": bed.data.name, "samples per second": speeds}
    return Row("evaluate", what, ratio(found["torch"], found["native"]), "x", 5.0, detail=detail)


def methods(how: How) -> list[Row]:
    """A client's whole visit in methods with losses of their own: native against the same method on torch."""
    data = image_data.equal("cifar10", 4, how.pick(1024, 128))
    return [_method(name, make_bed(data, 2), how) for name in METHODS]


def _method(name: str, bed: Bed, how: How) -> Row:
    method = make(name)
    # Two rounds first: prototypes, anchors and private models are there from then on.
    after = simulate(method, bed.native, bed.data, Plan(2, (1.0, 1.0), evaluate_every=2))
    down = method.send(bed.native, after.state.server, 0)
    record = after.records[0]

    def train(task: Task) -> None:
        local = Local(task, 0, 2, 0, bed.own, record.memory)
        method.train(task, method.receive(task, record.state, down, local), down, local)

    with threads():
        found = interleaved({"torch": lambda: train(bed.torch), "native": lambda: train(bed.native)}, how.pick(7, 2))
    count = len(bed.own.y) * bed.native.training.epochs
    speeds = {way: round(rate(count, found[way]).median) for way in found}
    what = f"{name}, visit of one client, one core, native against torch engine"
    detail = {"data": bed.data.name, "samples per second": speeds}
    return Row("methods", what, ratio(found["torch"], found["native"]), "x", 5.0, detail=detail)
