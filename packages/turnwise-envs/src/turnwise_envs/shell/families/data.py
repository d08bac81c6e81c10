"""Tasks about data: logs, tables, checksums, archives."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from hashlib import sha256
from random import Random

from turnwise_envs.shell.scene import Scene, Wanted, family, number_of, words
from turnwise_envs.shell.tree import Entry, Tree, file


@family
def logs(rng: Random, level: int) -> Scene:
    """Count in an access log."""
    count = number_of(level, 12, 60, 200)
    hosts = [f"10.0.0.{number}" for number in rng.sample(range(2, 250), number_of(level, 3, 5, 9))]
    status = rng.choice([404, 500])
    rows = [(rng.choice(hosts), f"/{rng.choice(words(rng, 4))}", rng.choice([200, 200, 200, 404, 500])) for _ in range(count)]
    favourite = rng.choice(hosts)
    rows += [(favourite, "/index", status)] * (count // 4 + 2)
    rng.shuffle(rows)
    text = "".join(f"{host} GET {path} {code}\n" for host, path, code in rows)
    if level == 1:
        what, answer = f"the number of requests that got the status {status}", str(sum(code == status for *_, code in rows))
        command = f"grep -c ' {status}$' access.log > answer.txt"
    else:
        by_host = Counter(host for host, _, code in rows if code == status)
        what, answer = f"the address that got the status {status} most often", by_host.most_common(1)[0][0]
        command = f"awk '$4 == {status} {{print $1}}' access.log | sort | uniq -c | sort -rn | head -1 | awk '{{print $2}}' > answer.txt"
    goal = f"Each line of access.log is an address, a method, a path and a status. Write {what} to answer.txt, and nothing else."
    return Scene(goal, {"access.log": file(text)}, Wanted({"answer.txt": answer}, loose=True), (command,))


@family
def table(rng: Random, level: int) -> Scene:
    """Select and add in a table."""
    names = words(rng, number_of(level, 5, 12, 20))
    cities = rng.sample(["Oslo", "Lima", "Cairo", "Quito"], number_of(level, 2, 3, 4))
    rows = [(name, rng.choice(cities), age) for name, age in zip(names, rng.sample(range(18, 80), len(names)), strict=True)]
    city = rows[0][1]
    chosen = [row for row in rows if row[1] == city]
    text = "name,city,age\n" + "".join(f"{name},{town},{age}\n" for name, town, age in rows)
    if level == 1:
        what, answer = f"the sum of the ages of all people in {city}", str(sum(age for *_, age in chosen))
        command = f"awk -F, '$2 == \"{city}\" {{s += $3}} END {{print s}}' people.csv > out.txt"
    else:
        what = f"the names of all people in {city}"
        answer = "\n".join(name for name, _, _ in sorted(chosen, key=lambda row: -row[2]))
        command = f"awk -F, '$2 == \"{city}\" {{print $3, $1}}' people.csv | sort -rn | awk '{{print $2}}' > out.txt"
    form = "" if level == 1 else ", one per line, the oldest first"
    return Scene(
        f"people.csv has a name, a city and an age per line. Write {what} to out.txt{form}.",
        {"people.csv": file(text)},
        Wanted({"out.txt": answer}, loose=True),
        (command,),
    )


@family
def checksum(rng: Random, level: int) -> Scene:
    """Find damaged files by their checksums, and restore them."""
    names = words(rng, number_of(level, 4, 8, 14))
    good = {f"{name}.bin": " ".join(words(rng, 6)) + "\n" for name in names}
    bad = rng.sample(sorted(good), number_of(level, 1, 2, 3))
    tree: dict[str, Entry] = {f"files/{name}": file(content if name not in bad else content[::-1]) for name, content in good.items()}
    tree["files/SUMS"] = file("".join(f"{sha256(content.encode()).hexdigest()}  {name}\n" for name, content in good.items()))
    if level == 1:
        goal = "files/SUMS holds the sha256 checksum of every file in files. One file does not match. Write its name to bad.txt."
        command = "cd files && sha256sum -c SUMS 2>/dev/null | awk -F: '/FAILED/ {print $1}' > ../bad.txt; cd .."
        return Scene(goal, tree, Wanted({"bad.txt": bad[0]}, loose=True), (command,))
    tree |= {f"backup/{name}": file(content) for name, content in good.items()}
    goal = (
        "files/SUMS holds the sha256 checksum of every file in files. Some files do not match. Replace these by those of the same name in "
        "backup, and write their names to bad.txt, one per line, in alphabetical order."
    )
    first = "cd files && sha256sum -c SUMS 2>/dev/null | awk -F: '/FAILED/ {print $1}' | sort > ../bad.txt; cd .."
    wanted = {f"files/{name}": content for name, content in good.items()} | {"bad.txt": "".join(f"{name}\n" for name in sorted(bad))}
    return Scene(goal, tree, Wanted(wanted), (first, "while read -r f; do cp backup/$f files/$f; done < bad.txt"))


@family
def pack(rng: Random, level: int) -> Scene:
    """Pack files into an archive."""
    names, ending = words(rng, number_of(level, 3, 6, 12)), "log"
    packed = {f"logs/{name}.{ending}": " ".join(words(rng, 5)) + "\n" for name in names}
    others = {f"logs/{name}.txt": name + "\n" for name in words(rng, number_of(level, 0, 2, 4))}
    tree = {path: file(content) for path, content in (packed | others).items()}
    removed = " Then delete these files from the folder." if level > 1 else ""
    goal = (
        "Pack all files of logs that end in .log into the archive logs.tar.gz, and nothing else. "
        f"A path in it is, for example, {sorted(packed)[0]}.{removed}"
    )

    def check(found: Tree) -> str:
        wanted = Wanted(others if level > 1 else others | packed, packed if level > 1 else ())
        return wanted(found) or _archive_problem(found.get("logs.tar.gz"), packed)

    commands = ["tar czf logs.tar.gz logs/*.log"] + (["rm logs/*.log"] if level > 1 else [])
    return Scene(goal, tree, check, tuple(commands))


def _archive_problem(entry: Entry | None, wanted: dict[str, str]) -> str:
    """What is wrong with an archive; it is read in memory, within bounds, and unpacks nothing."""
    if entry is None or entry.data is None:
        return "logs.tar.gz is missing"
    found: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(entry.data), mode="r:gz") as archive:
            for member in archive:
                if len(found) > 1000 or member.size > 1 << 20:
                    return "logs.tar.gz holds too much"
                if member.isfile():
                    opened = archive.extractfile(member)
                    found[member.name.removeprefix("./")] = (opened.read(1 << 20) if opened else b"").decode("utf-8", "replace")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        return f"logs.tar.gz cannot be read: {type(error).__name__}"
    return "" if found == wanted else "logs.tar.gz holds other files"


@family
def unpack(rng: Random, level: int) -> Scene:
    """Get files out of archives."""
    names = words(rng, number_of(level, 2, 4, 6))
    data = {f"{name}.txt": " ".join(words(rng, 5)) + "\n" for name in names}
    inner = _packed({f"old/{name}": content.encode() for name, content in data.items()})
    archive = inner if level < 3 else _packed({"inner.tar": inner, "note.txt": b"see inner.tar\n"})
    wanted_name = sorted(data)[0]
    goal = (
        f"The archive backup.tar{' holds another one, which' if level > 2 else ''} holds the file {wanted_name}. Put a copy of it into "
        "the folder restored, under the same name."
    )
    commands = ["mkdir -p restored /tmp/x", "tar xf backup.tar -C /tmp/x"]
    commands += ["tar xf /tmp/x/inner.tar -C /tmp/x"] if level > 2 else []
    commands += [f"cp /tmp/x/old/{wanted_name} restored/"]
    return Scene(goal, {"backup.tar": file(archive)}, Wanted({f"restored/{wanted_name}": data[wanted_name]}), (" && ".join(commands),))


def _packed(files: dict[str, bytes]) -> bytes:
    """An uncompressed archive, the same bytes everywhere."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), 1_700_000_000, 0o644
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()
