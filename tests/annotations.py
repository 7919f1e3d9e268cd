"""The checker behind the shape annotations: beartype, reading hints as a static type checker does."""

from typing import Self

from beartype import BeartypeConf, FrozenDict, beartype

# An int passes for a float; Self is left to the static checker, for beartype cannot resolve it on a single method.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: object})))
