"""How large a build is and how that is divided: from the builder's config and layers to those of one build.

    layered    config, the model's window ── the config of a builder with layers
    sized      config, layers, request ── max_tokens or the budget policy ── the share policy ── config, layers

What is worked out here is the size alone; what each layer and source may take of it says allocation.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ctx_vector.allocation import Layers
from ctx_vector.config import ContextConfig
from ctx_vector.errors import ConfigError
from ctx_vector.policies import SharePolicy, follow
from ctx_vector.sources import LayerShares
from ctx_vector.stages import Request

BudgetPolicy = Callable[[Request], int]


def layered(config: ContextConfig, model_max_tokens: int | None, output_reserve_ratio: float) -> ContextConfig:
    """Return the config of builds with layers: no reserve, and the limit the least of those given.

    `model_max_tokens` is the model's window in tokens, None for no limit by it. Raises ConfigError for a ratio outside
    [0, 1).
    """
    if not 0 <= output_reserve_ratio < 1:
        raise ConfigError([f"output_reserve_ratio: expected a number >= 0 and < 1, got {output_reserve_ratio!r}"])
    limit = config.max_tokens
    if model_max_tokens is not None:
        window = int(model_max_tokens * (1 - output_reserve_ratio))
        limit = window if limit == ContextConfig().max_tokens else min(limit, window)
    return config.with_(max_tokens=limit, reserve_ratio=0.0)


def sized(
    config: ContextConfig,
    layers: Layers | None,
    request: Request,
    max_tokens: int | None,
    budget_policy: BudgetPolicy | None,
    share_policy: SharePolicy | None,
) -> tuple[ContextConfig, Layers | None]:
    """Return the config and the layers of one build.

    `max_tokens` goes before the budget policy, which goes before the config; of several limits of layers the least
    counts. A share policy divides anew what the layers or the part budgets sum to. Raises InputError for what a policy
    gives that is none.
    """
    if max_tokens is None and budget_policy is not None:
        max_tokens = budget_policy(request)
    if max_tokens is not None:
        asked = config.with_(max_tokens=max_tokens)
        if layers is None or asked.max_tokens < config.max_tokens:
            config = asked
    if share_policy is None:
        return config, layers
    if layers is not None:
        weights = layers.shares.to_dict()
        buffer = weights.pop("buffer")
        shares = {name: min(1.0, share) for name, share in follow(share_policy, request, weights).items()}
        return config, replace(layers, shares=LayerShares.from_mapping({**shares, "buffer": buffer}))
    given = {part: float(tokens) for part, tokens in config.budgets.items() if tokens}
    if given:
        budgets = {part: int(tokens) for part, tokens in follow(share_policy, request, given).items()}
        config = config.with_(budgets={**config.budgets, **budgets})
    return config, None
