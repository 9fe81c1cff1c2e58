"""The contract of an op stays narrow, and nobody but the op itself knows its type."""

import ast
import inspect
from pathlib import Path

import penstock
from penstock import ops
from penstock.ops.op import Effect, Op, blocks, in_own_thread, joint_of

SOURCE = Path(penstock.__file__).parent
#: rooms that make and run plans
ROOMS = ("plan", "core", "program", "remote", "resume", "stats", "executors")


def traits():
    return {name for name in inspect.get_annotations(Op) if name != "verb"}


def test_an_op_has_at_most_a_dozen_traits():
    assert len(traits()) <= 12, sorted(traits())


def test_every_trait_is_read_where_plans_are_made_or_run():
    files = [path for room in ("plan", "core", "program") for path in (SOURCE / room).glob("*.py")]
    files += [SOURCE / "ops" / "op.py", SOURCE / "pipeline.py"]
    read = {
        node.attr
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert traits() <= read


def test_no_plan_and_no_runtime_looks_at_the_type_of_an_op():
    kinds = {name for name, kind in vars(ops).items() if isinstance(kind, type) and issubclass(kind, Op)} - {"Op"}
    imported = {
        (path.name, one.name)
        for room in ROOMS
        for path in (SOURCE / room).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock.ops")
        for one in node.names
    }
    assert not {(where, name) for where, name in imported if name in kinds}


def test_an_op_has_a_joint_if_it_returns_one():
    assert joint_of(ops.Map(str)) is None
    assert joint_of(ops.Shuffle()) is None
    assert joint_of(ops.Shuffle(8)).orders_shards
    assert joint_of(ops.Batch(4)).group_size == 4
    assert joint_of(ops.Reservoir(4)).eager
    assert joint_of(ops.Epoch(4)).carries


def test_a_joint_that_is_asked_leaves_nothing_in_the_op():
    op = ops.Reservoir(4)
    before = dict(vars(op))
    joint_of(op)
    assert vars(op) == before


def test_only_what_runs_no_plain_code_rides_on_an_event_loop():
    async def later(x):
        return x

    assert not blocks(ops.Map(later))
    assert not blocks(ops.Take(2))
    assert not blocks(ops.Prefetch(2))
    for op in (ops.Map(str), ops.Batch(2), ops.Unbatch(), ops.Cache(), ops.Bucket(len, [2], size=2)):
        assert blocks(op), op


def test_a_reservoir_and_a_move_to_a_device_have_a_thread_of_their_own():
    assert in_own_thread(ops.Reservoir(4))
    assert in_own_thread(ops.To("numpy"))
    assert not in_own_thread(ops.Map(str, workers=1))


def test_the_effects_are_those_of_the_page():
    page = (SOURCE.parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")
    for effect in Effect:
        assert f"| `{effect.name}` |" in page
    for trait in traits():
        assert f"`{trait}`" in page
