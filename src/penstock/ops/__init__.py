"""Ops as frozen values: ``pipeline.apply(ops.Map(fn))`` is ``pipeline.map(fn)``."""

from penstock.ops.batch import Batch
from penstock.ops.bucket import Bucket
from penstock.ops.cache import Cache
from penstock.ops.call import Retry
from penstock.ops.epoch import Epoch
from penstock.ops.filter import Filter
from penstock.ops.flat_map import FlatMap
from penstock.ops.joint import LOST, Ingredient, Joint
from penstock.ops.map import Map
from penstock.ops.op import Effect, Op, Order
from penstock.ops.pack import Pack
from penstock.ops.prefetch import Prefetch
from penstock.ops.repeat import Repeat
from penstock.ops.resample import Resample
from penstock.ops.reservoir import Reservoir
from penstock.ops.shard import Shard
from penstock.ops.shuffle import Shuffle
from penstock.ops.skip import SkipFirst
from penstock.ops.take import Take
from penstock.ops.tap import Tap
from penstock.ops.to import To
from penstock.ops.unbatch import Unbatch

__all__ = [
    "LOST",
    "Batch",
    "Bucket",
    "Cache",
    "Effect",
    "Epoch",
    "Filter",
    "FlatMap",
    "Ingredient",
    "Joint",
    "Map",
    "Op",
    "Order",
    "Pack",
    "Prefetch",
    "Repeat",
    "Resample",
    "Reservoir",
    "Retry",
    "Shard",
    "Shuffle",
    "SkipFirst",
    "Take",
    "Tap",
    "To",
    "Unbatch",
]
