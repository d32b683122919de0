"""The configuration: one TOML file, equal on all nodes, over it `SPARKD_*`, beside it credentials.

    [broker] port = 1884   in the file   is   SPARKD_BROKER__PORT=1884   in the environment, which wins.

Rules of this package:
- Defaults stand in the dataclasses that use the values, once; the models here only point to them.
- Unknown is an error at every level, also a misspelt SPARKD_* variable. All errors are told at once.
- An error says where, which key, which value and what is allowed. The value of a secret is never said.
- What comes out is frozen. Nothing of pydantic leaves this package; `load` is where it is imported.
"""

from sparkd.config.refusal import EX_CONFIG, ConfigError
from sparkd.config.values import Api, Broker, Loaded, Paths, UnitBackend

__all__ = ["EX_CONFIG", "Api", "Broker", "ConfigError", "Loaded", "Paths", "UnitBackend"]
