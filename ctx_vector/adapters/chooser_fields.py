"""The Chooser as fields of a pydantic model, for the frameworks whose components are such models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, PrivateAttr

from ctx_vector.adapters.shared import Chooser


class ChooserFields(BaseModel):
    """The arguments of a Chooser, and in `_chooser` the one made of them; to be the first base of a component."""

    max_tokens: int = Field(2000, ge=1)
    min_relevance: float = Field(0.1, ge=0, le=1)
    top_n: int | None = Field(None, ge=1)
    shorten: bool = True
    strategy: Any = "cosine"
    tokenizer: Any = "cl100k_base"
    encoder: Any = None
    _chooser: Chooser = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Make what chooses."""
        super().model_post_init(context)
        self._chooser = Chooser(
            self.max_tokens,
            self.min_relevance,
            self.top_n,
            shorten=self.shorten,
            strategy=self.strategy,
            tokenizer=self.tokenizer,
            encoder=self.encoder,
        )
