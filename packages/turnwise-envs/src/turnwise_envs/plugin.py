"""The entry point `turnwise.plugins`: registers the environments, the recipes, and the words for Gymnasium's grid worlds.

Factories, and functions that say whether something is there, are given as text: loading this imports no environment.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from turnwise.config.addons import ENVIRONMENTS, add_recipes
from turnwise.envs.gymnasium.words import Family, add_family
from turnwise.envs.registry import NUMBERED_SPLITS, Need, needs_private
from turnwise.envs.registry import register as add_environment
from turnwise_envs.shared.java import needs_java
from turnwise_envs.shared.packages import needs_package

ENDLESS: dict[str, int | None] = dict.fromkeys(NUMBERED_SPLITS)
MINIGRID = Family(
    ("MiniGrid-", "BabyAI-"),
    "minigrid.minigrid_env.MiniGridEnv",
    "turnwise_envs.babyai.gym_words:prepare",
    "turnwise_envs.babyai.gym_words:words",
)
NETHACK = Family(
    ("MiniHack-", "NetHack"),
    "nle.env.base.NLE",
    "turnwise_envs.minihack.gym_words:prepare",
    "turnwise_envs.minihack.gym_words:words",
)


def register() -> None:
    """Called by Turnwise when a name is first looked up."""
    for name, (factory, more) in _environments().items():
        add_environment(name, f"turnwise_envs.{factory}", summary=ENVIRONMENTS[name], **more)
    add_recipes(Path(__file__).parent / "recipes")
    add_family(MINIGRID)
    add_family(NETHACK)


def _environments() -> dict[str, tuple[str, dict[str, Any]]]:
    """The factory of each environment, and what the registry says about it."""
    nle = needs_package("nle", "minihack")
    python = Need(
        "a Python with AppWorld",
        _later("appworld.env", "has_appworld"),
        "a separate virtual environment: see docs/environments/adapters.md",
    )
    data = Need("AppWorld's data", _appworld_data, "appworld install && appworld download data: see docs/environments/adapters.md")
    chromium = "apt-get install chromium, or set TURNWISE_CHROMIUM to the path of a Chrome or Chromium"
    browser = Need("Chromium", lambda: _later("miniwob.browser", "find_chromium")() is not None, chromium)
    server = "start a server and set OPENENV_URL, or the option url: see docs/environments/adapters.md"
    address = Need("OPENENV_URL", lambda: bool(_later("openenv.env", "default_url")()), server)
    bubblewrap = Need("bubblewrap", _later("shell.start", "present"), "apt-get install bubblewrap, or your system's package of it")
    namespaces = "allow user namespaces, which bubblewrap needs: see docs/environments/shell.md"
    permission = Need("permission for user namespaces", _later("shell.box", "usable"), namespaces)
    named = Need("an environment", lambda: False, "the option environment: see docs/environments/adapters.md")
    # BFCL's package pins an older numpy, so it is installed without its dependencies. Of those, its multi-turn part imports mpmath alone.
    bfcl = needs_private("bfcl_eval", "bfcl", "bfcl-eval==2026.3.23", "mpmath>=1.3")
    tau2 = needs_private("inspect_evals", "tau2", "inspect-evals==0.26.0")
    appworld_splits = {"train": 90, "dev": 57, "test_normal": 168, "test_challenge": 417}
    science_splits = {"train": 3592, "valid": 1796, "test": 1819}
    return {
        "appworld": ("appworld.env:AppWorldEnv", {"splits": appworld_splits, "max_turns": 40, "needs": [python, data]}),
        "babyai": ("babyai.env:BabyAIEnv", {"splits": ENDLESS, "max_turns": 64, "needs": [needs_package("minigrid", "babyai")]}),
        "bfcl": ("bfcl.env:BfclEnv", {"splits": {"train": 620, "valid": 180}, "max_turns": 40, "needs": [bfcl]}),
        "minihack": (
            "minihack.env:MiniHackEnv",
            {"splits": ENDLESS, "max_turns": 100, "needs": [nle, needs_package("minihack", "minihack")]},
        ),
        "miniwob": (
            "miniwob.env:MiniWobEnv",
            {"splits": ENDLESS, "max_turns": 15, "needs": [needs_package("miniwob", "miniwob"), browser]},
        ),
        "nethack": ("minihack.env:NetHackEnv", {"splits": ENDLESS, "max_turns": 500, "needs": [nle]}),
        "openenv": ("openenv.env:OpenEnvClient", {"needs": [needs_package("websockets", "openenv"), address]}),
        "reasoning": ("reasoning.env:ReasoningEnv", {"splits": ENDLESS, "needs": [needs_package("reasoning_gym", "reasoning")]}),
        "scienceworld": (
            "scienceworld.env:ScienceWorldEnv",
            {"splits": science_splits, "max_turns": 100, "needs": [needs_package("scienceworld", "scienceworld"), needs_java()]},
        ),
        "shell": ("shell.env:ShellEnv", {"splits": ENDLESS, "max_turns": 20, "needs": [bubblewrap, permission]}),
        "tau2": ("tau2.env:Tau2Env", {"splits": {"train": 178, "valid": 100}, "max_turns": 40, "needs": [tau2]}),
        "textarena": ("textarena.env:TextArenaEnv", {"splits": ENDLESS, "needs": [needs_package("textarena", "textarena")]}),
        "textworld": (
            "textworld.env:TextWorldEnv",
            {"splits": _textworld_splits, "max_turns": 100, "needs": [needs_package("textworld", "textworld")]},
        ),
        "textworld-express": (
            "textworld.express:TextWorldExpressEnv",
            {
                "splits": dict.fromkeys(ENDLESS, 8000),
                "max_turns": 100,
                "needs": [needs_package("textworld_express", "textworld-express"), needs_java()],
            },
        ),
        "verifiers": ("verifiers.env:VerifiersEnv", {"needs": [needs_package("verifiers", "verifiers"), named]}),
    }


def _later(module: str, name: str) -> Callable[[], Any]:
    """A function of an environment's module, imported when it is called."""
    return lambda: getattr(import_module(f"turnwise_envs.{module}"), name)()


def _appworld_data() -> bool:
    folder: Path = _later("appworld.env", "find_data")()
    return folder.is_dir()


def _textworld_splits() -> dict[str, int | None]:
    return {} if _later("textworld.env", "default_games")() is not None else ENDLESS
