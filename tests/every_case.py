"""One test over many cases: collecting and reporting thousands of tests takes longer than running
them. The cases that fail are named, all of them, as `pytest.mark.parametrize` would do."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def every_case(
    argument: str, cases: Iterable[Any], label: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a test that takes one case as `argument`; fixtures are shared by all cases.

    `argument` may name several, as in "text, expected"; each case is then a tuple of as many.
    """
    names = [name.strip() for name in argument.split(",")]
    cases = list(cases)
    assert cases, "a test without cases cannot fail"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def test_of_every_case(*args: Any, **fixtures: Any):
            failures: list[tuple[str, BaseException]] = []
            for case in cases:
                values = case if len(names) > 1 else (case,)
                try:
                    with named(label(case)):
                        test(*args, **dict(zip(names, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((label(case), error))
            if failures:
                failed = "; ".join(name for name, _ in failures)
                message = f"{len(failures)} of {len(cases)} cases failed: {failed}"
                raise BaseExceptionGroup(message, [error for _, error in failures])

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in names]
        # pytest reads here which fixtures the test wants.
        test_of_every_case.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return test_of_every_case

    return decorate


@contextmanager
def named(label: str) -> Iterator[None]:
    """Adds the name of the case to what is raised inside."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        error.add_note(f"the case: {label}")
        raise
