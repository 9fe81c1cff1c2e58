"""What map, filter, flat_map and tap have in common: they call a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal

from penstock.checks import check_positive, whole_number
from penstock.errors import OnError, PlanError
from penstock.executors.executor import Placement, Pool
from penstock.lazy import named
from penstock.ops.fields import get_field, with_field
from penstock.ops.functions import as_function, check_function, function_name, is_async, result_of, where
from penstock.ops.op import Delivery, In, Op, Out


@dataclass(frozen=True, slots=True)
class Retry:
    """Call again when a function fails: `times` more calls, `backoff_s` apart and doubling.

    A retry sees the same random numbers. When all have failed, `then` says whether the sample
    is skipped or the exception raised.

    >>> import penstock as ps
    >>> answers = iter([TimeoutError("busy"), "ok"])
    >>> def ask(sample):
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> list(ps.from_sequence([1]).map(ask, on_error=ps.Retry(times=2, backoff_s=0)))
    ['ok']
    """

    times: int = 3
    backoff_s: float = 0.1
    then: OnError = "skip"

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", whole_number(self.times, "Retry(times=)", least=1))
        if self.backoff_s < 0:
            raise PlanError(f"Retry(backoff_s=) cannot be negative, got {self.backoff_s!r}")
        if self.then not in ("raise", "skip"):
            raise PlanError(f"Retry(then=) takes 'raise' or 'skip', got {self.then!r}")


@dataclass(frozen=True)
class CallOp(Op[In, Out]):
    """The base of ops that call a function of the user's for every sample."""

    fn: Any
    _: KW_ONLY
    workers: int | Literal["auto"] | None = None
    on: str | Pool | None = None
    key: Any = None
    star: bool = False
    rng: bool | Literal["global"] = False
    info: bool = False
    ordered: bool = True
    on_error: OnError | Retry = "raise"
    timeout_s: float | None = None
    name: str | None = None

    calls_user = True

    def __post_init__(self) -> None:
        check_function(self.fn, self.verb)
        if self.on_error not in ("raise", "skip") and not isinstance(self.on_error, Retry):
            raise PlanError(f"{self.verb}(on_error=) takes 'raise', 'skip' or ps.Retry(...), got {self.on_error!r}")
        check_positive(self.timeout_s, f"{self.verb}(timeout_s=)")
        if self.rng not in (False, True, "global"):
            raise PlanError(f"{self.verb}(rng=) takes True, False or 'global', got {self.rng!r}")
        if self.rng is True and self.info:
            raise PlanError(f"{self.verb}: info=True already carries the generator as info.rng; leave rng out")
        if self.star and self.key is not None:
            raise PlanError(f"{self.verb}: star=True spreads the sample and key= picks a field; use one of them")
        if self.asynchronous and self.on not in (None, "async", "inline"):
            raise PlanError(
                f"{self.verb}({function_name(self.fn)}) is an async def, which runs on='async'; got on={self.on!r}"
            )
        _ = self.placement  # refuses a bad workers= or on= here, at the line the user wrote

    @cached_property
    def placement(self) -> Placement | None:  # type: ignore[override]
        on = "async" if self.asynchronous and self.on is None and self.workers is not None else self.on
        return Placement.of(on, self.workers, self.label)

    @cached_property
    def asynchronous(self) -> bool:  # type: ignore[override]
        return self.on == "async" or is_async(self.fn)

    @property
    def random(self) -> bool | Literal["global"]:  # type: ignore[override]
        return self.rng

    @property
    def delivery(self) -> Delivery:  # type: ignore[override]
        return Delivery(self.ordered)

    @cached_property
    def may_skip(self) -> bool:  # type: ignore[override]
        return self.on_error == "skip" or (isinstance(self.on_error, Retry) and self.on_error.then == "skip")

    @property
    def title(self) -> str:
        return self.name or function_name(self.fn)

    @property
    def label(self) -> str:
        return f"{self.verb}({self.title})"

    @property
    def where(self) -> str:
        return where(self.fn)

    def bind(self) -> Callable[..., Any]:
        fn = as_function(self.fn, self.label)
        if self.star:
            return lambda sample, *extra: fn(*sample, *extra)
        if self.key is not None:
            key = self.key
            if self.asynchronous:

                async def on_field(sample: Any, *extra: Any) -> Any:
                    return self.replaced(sample, await result_of(fn(get_field(sample, key), *extra)))

                return on_field
            return lambda sample, *extra: self.replaced(sample, fn(get_field(sample, key), *extra))
        return fn

    def replaced(self, sample: Any, value: Any) -> Any:
        """What a function that was given one field makes of the sample."""
        return with_field(sample, self.key, value)

    def at_once(self, value: Any) -> Any:
        """What a function returned, with all that it will draw drawn."""
        return value

    def _arguments(self, info: Any) -> tuple[Callable[..., Any], Callable[[int], Any] | None]:
        fn = info.bound
        if self.rng is True:
            return fn, info.rng
        if self.info:
            return fn, info.sample_info
        if self.rng == "global":
            return (lambda sample, _: self.at_once(fn(sample))), info.seed_globals
        return fn, None

    def run(self, samples: list[Any], info: Any) -> list[Any]:
        fn, extra = self._arguments(info)
        out: list[Any]
        if self.rng == "global" and not info.own_thread:
            # The training loop's own thread: what it draws itself must not depend on what was seeded here.
            with named("penstock.generators:kept")():
                out = info.each(fn, samples, extra)
        else:
            out = info.each(fn, samples, extra)
        return out

    async def run_async(self, samples: list[Any], info: Any) -> list[Any]:
        fn, extra = self._arguments(info)
        out: list[Any] = await info.each_async(fn, samples, extra)
        return out
