"""The tree of errors is as its docstring draws it, and messages name values, bounds and next steps."""

from __future__ import annotations

import inspect
import re

import pytest

from ctx_vector import errors
from ctx_vector.errors import BudgetError, ConfigError, CtxVectorError, OptionalDependencyError

CLASSES = [item for _, item in inspect.getmembers(errors, inspect.isclass) if item.__module__ == errors.__name__]


def test_the_docstring_draws_every_class_under_its_bases() -> None:
    drawn = re.findall(r"(\w+Error)\b(?: +\((\w+)\))?", errors.__doc__.split("Messages name")[0])
    assert {name for name, _ in drawn} == {item.__name__ for item in CLASSES}
    for name, builtin in drawn:
        if builtin:
            assert builtin in [base.__name__ for base in getattr(errors, name).__mro__]


@pytest.mark.parametrize("item", CLASSES)
def test_one_base_catches_all_and_each_says_when_it_is_raised(item: type) -> None:
    assert issubclass(item, CtxVectorError)
    assert item.__doc__


def test_config_error_holds_every_problem() -> None:
    one, two = ConfigError(["a: bad"]), ConfigError(["a: bad", "b.c: worse"])
    assert str(one) == "invalid configuration: a: bad"
    assert str(two) == "2 configuration problems: a: bad; b.c: worse"
    assert two.problems == ("a: bad", "b.c: worse")
    assert isinstance(one, ValueError)


def test_budget_error_names_the_sizes_and_what_would_do() -> None:
    error = BudgetError(120, 100, {"system": 90, "Task": 30}, 125)
    assert (error.used, error.limit, error.parts, error.needed) == (120, 100, {"system": 90, "Task": 30}, 125)
    assert isinstance(error, RuntimeError)
    for part in ("120", "100", "system 90", "Task 30", "125"):
        assert part in str(error)


def test_optional_dependency_names_the_command() -> None:
    error = OptionalDependencyError("reading Word files", "office")
    assert isinstance(error, ImportError)
    assert "pip install 'ctx_vector[office]'" in str(error)
