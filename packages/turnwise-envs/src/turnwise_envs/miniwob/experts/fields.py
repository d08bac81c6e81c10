"""Tasks that are done by typing into fields."""

from __future__ import annotations

import re

from turnwise_envs.miniwob.experts.base import after, click, expert, fill, first, nth, press, said
from turnwise_envs.miniwob.view import Item, Look, quoted


def _boxes(look: Look) -> list[Item]:
    return look.find(kind=("textbox", "password", "number"))


@expert("enter-text", "enter-text-dynamic")
def text(look: Look) -> str | None:
    return fill([(_boxes(look)[0], quoted(look.utterance)[0])]) or press(look)


@expert("enter-text-2")
def cased(look: Look) -> str | None:
    word = quoted(look.utterance)[0]
    return fill([(_boxes(look)[0], word.lower() if "lower" in look.utterance else word.upper())]) or press(look)


@expert("enter-password")
def password(look: Look) -> str | None:
    return fill((box, quoted(look.utterance)[0]) for box in _boxes(look)) or press(look)


@expert("login-user", "login-user-popup")
def login(look: Look) -> str | None:
    if (cancel := first(look, text="Cancel")) is not None:
        return click(cancel)
    names = said(look, r'username "(.*?)" and the password "(.*?)"')
    return fill(zip(_boxes(look), names, strict=False)) or press(look, "Login", "OK")


@expert("enter-date")
def date(look: Look) -> str | None:
    month, day, year = said(look, r"(\d+)/(\d+)/(\d+)")
    box = look.find(kind=("date", "textbox"))[0]
    done = box.value in (f"{year}-{month}-{day}", f"{month}/{day}/{year}")
    return press(look) if done else f'type {box.n} "{month}/{day}/{year}"'


@expert("enter-time")
def time(look: Look) -> str | None:
    hour, minute, half = said(look, r"(\d+):(\d+) (AM|PM)")
    box = first(look, kind=("time", "textbox"))
    if box is None:
        return None
    wanted = f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}"
    return press(look) if box.value == wanted else f'type {box.n} "{int(hour):02}:{minute} {half}"'


@expert("focus-text", "focus-text-2")
def focus(look: Look) -> str | None:
    (place,) = said(look, r"the (\d)\w+ input")
    return click(_boxes(look)[int(place or 1) - 1])


@expert("find-word")
def word(look: Look) -> str | None:
    (place,) = said(look, r"the (\d+)\w+ word")
    words = look.find(kind="text")[0].text.split()
    return fill([(_boxes(look)[0], re.sub(r"[.,]", "", words[int(place) - 1]))]) or press(look)


@expert("read-table")
def table(look: Look) -> str | None:
    (name,) = said(look, r"value of (.*?) into")
    cells = [item.text for item in look.find(kind="cell")]
    return fill([(_boxes(look)[0], cells[cells.index(name) + 1])]) or press(look)


@expert("read-table-2")
def table_form(look: Look) -> str | None:
    cells = [item.text for item in look.find(kind="cell")]
    labels = [item for item in look.items if item.text.endswith(":")]
    pairs = [(after(look, label, kind="textbox"), cells[cells.index(label.text[:-1]) + 1]) for label in labels]
    return fill((box, value) for box, value in pairs if box is not None) or press(look)


@expert("simple-arithmetic")
def arithmetic(look: Look) -> str | None:
    problem = " ".join(item.text for item in look.items if item.kind in ("text", "plain"))
    a, sign, b = re.findall(r"(-?\d+)\s*([-+x*×])\s*(-?\d+)", problem)[0]
    value = {"+": int(a) + int(b), "-": int(a) - int(b)}.get(sign, int(a) * int(b))
    return fill([(_boxes(look)[0], str(value))]) or press(look)


@expert("simple-algebra")
def algebra(look: Look) -> str | None:
    problem = next(item.text for item in look.items if "=" in item.text and re.search(r"\d", item.text))
    a, sign, b, result = re.findall(r"(x|-?\d+)\s*([-+])\s*(x|-?\d+)\s*=\s*(-?\d+)", problem)[0]
    add = sign == "+"
    one, total = int(b if a == "x" else a), int(result)
    value = total - one if add else total + one if a == "x" else one - total
    return fill([(_boxes(look)[0], str(value))]) or press(look)


@expert("text-transform")
def captcha(look: Look) -> str | None:
    letters = "".join(item.text for item in look.find(kind=("text", "plain")) if len(item.text) == 1)
    return fill([(_boxes(look)[0], letters)]) or press(look)


@expert("visual-addition")
def blocks(look: Look) -> str | None:
    return fill([(_boxes(look)[0], str(len(look.find(kind="box"))))]) or press(look)


@expert("guess-number")
def guess(look: Look) -> str | None:
    hint = " ".join(item.text for item in look.items)
    box = _boxes(look)[0]
    bound = re.search(r"(higher|lower) than (\d+)", hint)
    number = 5 if bound is None else int(bound[2]) + (1 if bound[1] == "higher" else -1)
    return fill([(box, str(number))]) or press(look)


@expert("copy-paste", "copy-paste-2")
def copy(look: Look) -> str | None:
    (place,) = said(look, r"the (\d)\w+ text area")
    area = look.find(kind="textarea")[int(place or 1) - 1]
    return fill([(_boxes(look)[0], area.value or "")]) or press(look)


@expert("scroll-text")
def last_word(look: Look) -> str | None:
    words = re.findall(r"\w+", look.find(kind="textarea")[0].value or "")
    return fill([(_boxes(look)[0], words[-1])]) or press(look)


@expert("scroll-text-2")
def scroll(look: Look) -> str | None:
    area = look.find(kind="textarea")[0]
    place, most = area.scroll or (0, 0)
    down = "bottom" in look.utterance
    return press(look) if (place >= most - 1 if down else place == 0) else f"scroll {area.n} {'down' if down else 'up'}"


@expert("multi-layouts", "multi-orderings")
def movie(look: Look) -> str | None:
    genre, director, year = said(look, r"for (.*?) movies directed by (.*?) from year (\d+)")
    values = {"genre": genre, "director": director, "year": year, "date": year}
    pairs = []
    for box in _boxes(look):
        before = [item for item in look.items[: look.items.index(box)] if item.kind in ("text", "cell", "plain", "heading")]
        label = (box.text or (before[-1].text if before else "")).lower()
        pairs += [(box, value) for name, value in values.items() if name in label][:1]
    button = next((item for item in look.items if item.kind == "button" or item.text in ("Submit", "Search", "Go!")), None)
    return fill(pairs) or click(button)


@expert("form-sequence-2")
def radio_and_text(look: Look) -> str | None:
    (place,) = said(look, r"Check the (\d)\w+ radio")
    number, box = said(look, r'number "(.*?)" into the (\d)')
    radio = look.find(kind="radio")[nth(place) - 1]
    return (click(radio) if not radio.checked else None) or fill([(_boxes(look)[int(box) - 1], number)]) or press(look)


@expert("form-sequence-3")
def drop_down(look: Look) -> str | None:
    choice, button = said(look, r'Choose (.*?) from the dropdown, then click the button labeled "(.*?)"')
    found = first(look, kind="select")
    return f'select {found.n} "{choice}"' if found and found.value != choice else press(look, button)


@expert("terminal")
def terminal(look: Look) -> str | None:
    (ending,) = said(look, r"extension (\.\w+)")
    lines = [item.text for item in look.items]
    names = [name for line in lines for name in line.split() if (name.endswith(ending) if ending else "." not in name and name.isalnum())]
    prompt = [item for item in look.items if item.text.startswith("user$")]
    typed = next((item.text for item in look.items if item.id == "active-input"), "")
    command = f"rm {names[0]}" if names and "ls" in lines else "ls"
    if not prompt or typed == command:
        return "press enter" if prompt else None
    return "press backspace" if typed else f'type {prompt[-1].n} "{command}"'
