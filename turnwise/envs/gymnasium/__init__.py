"""Third-party environments, each behind the same two methods, each in a separate extra if pip allows it.

Their packages are imported only when one of them is made; a listing shows what each one lacks and how to get it.
"""

from __future__ import annotations

from turnwise.adapters.java import needs_java
from turnwise.envs.registry import NUMBERED_SPLITS, Need, needs_package, register

register(
    "gymnasium",
    "turnwise.adapters.gymnasium:GymnasiumEnv",
    summary="any Gymnasium environment with discrete, multi-discrete or text actions, by its id",
    needs=[needs_package("gymnasium", "gymnasium")],
)

register(
    "textworld",
    "turnwise.adapters.textworld:TextWorldEnv",
    summary="TextWorld: coin, treasure and cooking games made on demand; or Z-machine games from a file or a folder",
    splits=lambda: _textworld_splits(),
    max_turns=100,
    needs=[needs_package("textworld", "textworld")],
)

register(
    "scienceworld",
    "turnwise.adapters.scienceworld:ScienceWorldEnv",
    summary="ScienceWorld's thirty tasks of school science, their variations as splits",
    splits={"train": 3592, "valid": 1796, "test": 1819},
    max_turns=100,
    needs=[
        needs_package("scienceworld", "scienceworld"),
        needs_java(),
    ],
)

register(
    "textworld-express",
    "turnwise.adapters.textworld_express:TextWorldExpressEnv",
    summary="TextWorld-Express: eight small text games from seeds, such as coin, cookingworld and twc",
    splits={"train": 8000, "valid": 8000, "test": 8000},
    max_turns=100,
    needs=[needs_package("textworld_express", "textworld-express"), needs_java()],
)

register(
    "openenv",
    "turnwise.adapters.openenv:OpenEnvClient",
    summary="an environment behind a running OpenEnv server",
    needs=[
        needs_package("websockets", "openenv"),
        Need("OPENENV_URL", lambda: _openenv_url(), "start a server and set OPENENV_URL, or the option url: see docs/adapters.md"),
    ],
)

register(
    "verifiers",
    "turnwise.adapters.verifiers:VerifiersEnv",
    summary="a multi-turn environment of the package verifiers, with its dataset, rollout and rubric",
    needs=[
        needs_package("verifiers", "verifiers"),
        Need("an environment", lambda: False, "the option environment: see docs/adapters.md"),
    ],
)

register(
    "appworld",
    "turnwise.adapters.appworld:AppWorldEnv",
    summary="AppWorld: write code that uses the apps of a simulated person",
    splits={"train": 90, "dev": 57, "test_normal": 168, "test_challenge": 417},
    max_turns=40,
    needs=[
        Need("a Python with AppWorld", lambda: _appworld_python(), "a separate virtual environment: see docs/adapters.md"),
        Need("AppWorld's data", lambda: _appworld_data(), "appworld install && appworld download data: see docs/adapters.md"),
    ],
)


def _textworld_splits() -> dict[str, int | None]:
    from turnwise.adapters.textworld import default_games

    return {} if default_games() is not None else dict.fromkeys(NUMBERED_SPLITS)


def _openenv_url() -> bool:
    from turnwise.adapters.openenv import default_url

    return bool(default_url())


def _appworld_data() -> bool:
    from turnwise.adapters.appworld import find_data

    return find_data().is_dir()


def _appworld_python() -> bool:
    from turnwise.adapters.appworld import has_appworld

    return has_appworld()
