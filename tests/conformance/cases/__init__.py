"""One module per operator family, each with a list `CASES`; found by themselves."""

from importlib import import_module
from pkgutil import iter_modules

from watersmeet.testing.cases import Case

CASES: list[Case] = [
    case for module in iter_modules(__path__) for case in import_module(f"{__name__}.{module.name}").CASES
]
