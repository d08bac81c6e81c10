"""A model by its name: a folder here, a hub that answers, or a copy from before; and where there is none, one line, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.utils
import pytest
from huggingface_hub import constants

from turnwise import TurnwiseError
from turnwise.learn.models import load_folder, tokenizer_of
from turnwise.util import hub


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hub that nobody serves; counts how often it is asked."""
    asked = []

    class Session:
        def head(self, url: str, timeout: float) -> None:
            asked.append((url, timeout))
            raise ConnectionError("Name or service\nnot known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.utils, "get_session", Session)
    hub.why_silent.cache_clear()
    yield asked
    hub.why_silent.cache_clear()


def test_a_hub_that_cannot_be_reached_is_asked_once_and_told_in_one_line(
    unreachable: list[Any], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for load in (tokenizer_of, load_folder, hub.find_model):
        with pytest.raises(
            TurnwiseError, match=r"cannot be reached \(Name or service not known\). Give the path of a model folder"
        ) as caught:
            load("nobody/no-such-model")
        assert "\n" not in str(caught.value)
    assert len(unreachable) == 1 and unreachable[0][1] <= 10
    assert not caplog.records and capfd.readouterr() == ("", "")


def test_what_was_downloaded_before_is_used_where_the_hub_is_silent(
    unreachable: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, local_files_only: str(tmp_path))
    assert hub.find_model("somebody/model") == str(tmp_path)


def test_a_folder_is_never_looked_for_on_a_hub(unreachable: list[Any], tmp_path: Path) -> None:
    assert hub.find_model(tmp_path) == str(tmp_path)
    with pytest.raises(TurnwiseError, match="no such folder"):
        hub.find_model(tmp_path / "absent")
    assert not unreachable


def test_offline_by_choice_asks_nobody(unreachable: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TurnwiseError, match="HF_HUB_OFFLINE forbids using the hub"):
        hub.find_model("nobody/no-such-model")
    assert not unreachable
