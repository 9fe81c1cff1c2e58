"""Many small cases in one test."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])


def for_each(names: str, cases: Iterable[Any]) -> Callable[[F], F]:
    """Call the test once per case, as `pytest.mark.parametrize` would, but within one test.

    A test of pytest costs milliseconds: too much for a case that takes none. A failure names its case in a note.
    Fixtures are made once for all cases, so a test whose fixtures keep something is better parametrized. Only
    `tmp_path` is another folder for each case: a worker of the case before may still read a file that is mapped
    into memory, and a mapped file that is written anew ends the process. The test is skipped if all its cases are.

    Cases on worker processes share those of `warm_pool`.
    """
    arguments = [name.strip() for name in names.split(",")]
    table = [_values(case, len(arguments)) for case in cases]
    assert table, "no case at all"

    def decorate(test: F) -> F:
        @wraps(test)
        def all_cases(*args: Any, **fixtures: Any) -> None:
            skipped = []
            folder = fixtures.get("tmp_path")
            for number, values in enumerate(table):
                case = dict(zip(arguments, values, strict=True))
                if folder is not None:
                    fixtures["tmp_path"] = folder / f"case-{number}"
                    fixtures["tmp_path"].mkdir()
                try:
                    test(*args, **fixtures, **case)
                except pytest.skip.Exception as exc:
                    skipped.append(exc)
                except BaseException as exc:
                    exc.add_note("in the case " + ", ".join(f"{name}={value!r}" for name, value in case.items()))
                    raise
            if len(skipped) == len(table):
                raise skipped[0]

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name not in arguments]
        assert len(left) == len(signature.parameters) - len(arguments), f"{test.__name__} has no {names}"
        all_cases.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        if any(getattr(value, "processes", False) for values in table for value in values):
            all_cases = pytest.mark.usefixtures("warm_pool")(all_cases)
        return all_cases  # type: ignore[return-value]

    return decorate


def _values(case: Any, count: int) -> tuple[Any, ...]:
    if isinstance(case, type(pytest.param())):
        assert not case.marks, "a case with marks is a test of its own"
        values = tuple(case.values)
    else:
        values = (case,) if count == 1 else tuple(case)
    assert len(values) == count, f"{count} values expected, not {values!r}"
    return values
