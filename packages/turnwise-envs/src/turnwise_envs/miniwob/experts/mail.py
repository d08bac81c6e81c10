"""The tasks of the mail box."""

from __future__ import annotations

import re

from turnwise_envs.miniwob.experts.base import after, click, expert, fill, first, said
from turnwise_envs.miniwob.view import Item, Look


def _has(look: Look, *names: str) -> Item | None:
    return next((item for item in look.items if item.n and set(names) & {item.id, *item.cls.split()}), None)


@expert(
    "email-inbox", "email-inbox-delete", "email-inbox-forward", "email-inbox-important", "email-inbox-noscroll", "email-inbox-reply",
    "email-inbox-star-reply", "email-inbox-forward-nl",
)  # fmt: skip
def mail(look: Look) -> str | None:
    goal = look.utterance
    (sender,) = said(look, r"(?:email|mail|message|e-mail)s? (?:by|from|you got from|that) ([\w-]+)")
    (reply,) = said(look, r'with the text "(.*)"')
    (receiver,) = said(look, r"(?:forward|send|Forward|Send)\b.*? to ([\w-]+)")
    (other,) = said(look, r"(?:Send|Give|send|give) ([\w-]+) the email")
    action = "important" if re.search(r"star icon|important", goal) else "delete" if re.search(r"trash|delete", goal) else ""
    return answer(look, action, sender, receiver or other, reply)


def answer(look: Look, action: str, sender: str, receiver: str = "", reply: str = "") -> str | None:
    """What to do next with a mail of a sender."""
    name = next((item for item in look.items if "email-sender" in item.cls.split() and item.text == sender), None)
    if action in ("important", "delete"):
        return click(after(look, name, text="star" if action == "important" else "trash")) if name else None
    if reply and (box := _has(look, "reply-text")) is not None:
        return fill([(box, reply)]) or click(_has(look, "send-reply"))
    if receiver and (box := _has(look, "forward-sender")) is not None:
        return fill([(box, receiver)]) or click(_has(look, "send-forward"))
    inside = first(look, text="Reply" if reply else "Forward")
    return click(inside or name or first(look, text=sender))
