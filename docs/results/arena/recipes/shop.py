"""A small shop of our own in WebShop's rules; shop/make.py wrote its goods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from turnwise.envs.base import Observation
from turnwise.envs.webshop.env import WebShopEnv


class SmallShop(WebShopEnv):
    """30 products with a colour and a size to choose. The score is the reward. Pages are short: the first results, or the product and
    what is still to be chosen."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).parent / "shop", anchor="state")

    def _see(self) -> Observation:
        page, text = self.page, self.page.kind
        if page.kind == "results":
            text = f"results: {'; '.join(self.shop.listed(page)[:3])}"
        elif page.kind == "item":
            text = f"item: {page.product} {' '.join(name.upper() for name in ('color', 'size') if name not in dict(page.options))}"
        return replace(super()._see(), text=text)
