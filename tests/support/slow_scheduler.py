"""What a scheduler must do, from the rules alone: a plain table of groups and engines that is fed with the same events, checks every
action, and says which groups must have ended how. It never asks the scheduler anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.cluster.scheduler import Action, Dispatch, Ended, Group, Lease


@dataclass
class Row:
    group: Group
    lease: Lease | None = None
    oldest: int | None = None
    failures: int = 0
    attempts: int = 0

    @property
    def waits(self) -> bool:
        return self.lease is None and self.oldest is None


@dataclass
class Table:
    staleness: int
    capacity: int
    retries: int
    version: int = 0
    formed: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)  # the versions that they have
    ends: dict[int, str] = field(default_factory=dict)

    # Each event says what must end because of it; `check` compares that with the actions.

    def engine_up(self, name: str, version: int, actions: list[Action]) -> None:
        must = self._lose(name)
        self.engines[name] = version
        self.check(actions, must)

    def engine_down(self, name: str, actions: list[Action]) -> None:
        self.check(actions, self._lose(name))

    def submit(self, group: Group, actions: list[Action]) -> None:
        self.rows[group.id] = Row(group)
        self.check(actions, {})

    def finished(self, lease: Lease, oldest: int, ok: bool, actions: list[Action]) -> None:
        row = self.rows.get(lease.group)
        must: dict[int, str] = {}
        if row is None or row.lease != lease:
            assert actions == [], "a late answer changes nothing"
            return
        if ok:
            row.lease, row.oldest = None, oldest
        else:
            must = self._back(row)
        self.check(actions, must)

    def published(self, version: int, actions: list[Action]) -> None:
        self.version = version
        self.check(actions, {})

    def engine_published(self, name: str, version: int, actions: list[Action]) -> None:
        if name in self.engines:
            self.engines[name] = version
        self.check(actions, {})

    def form(self, batch: int, actions: list[Action]) -> None:
        self.formed, must = batch + 1, {}
        for id, row in self.rows.items():
            if row.group.batch <= batch:
                assert row.oldest is not None
                must[id] = "accepted" if batch - row.oldest <= self.staleness else "stale"
        self.check(actions, must)

    # Rules

    def check(self, actions: list[Action], must: dict[int, str]) -> None:
        ended = [action for action in actions if isinstance(action, Ended)]
        assert {end.group.id: end.how for end in ended} == must and len(ended) == len(must)
        for end in ended:
            assert end.group.id not in self.ends, "a group ended twice"
            row = self.rows.pop(end.group.id)
            self.ends[end.group.id] = end.how
            assert end.group == row.group
            if end.how == "accepted":
                assert row.oldest is not None and row.group.batch - row.oldest <= self.staleness
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatched(action)
        for row in self.rows.values():
            assert not (row.waits and self._free(row)), "admitted work waits although an engine could take it"

    def _dispatched(self, action: Dispatch) -> None:
        row = self.rows[action.lease.group]
        assert row.waits and row is min((one for one in self.rows.values() if one.waits), key=lambda one: (one.group.batch, one.group.id))
        free = self._free(row)
        assert action.lease.engine in free, "the engine has no room, or not the weights"
        row.attempts += 1
        assert action.lease == Lease(row.group.id, row.attempts, action.lease.engine, self.engines[action.lease.engine])
        if row.failures == 0:
            least = [name for name in free if self.running(name) == min(map(self.running, free))]
            assert action.lease.engine in ([row.group.prefers] if row.group.prefers in free else least)
        row.lease = action.lease

    def _free(self, row: Row) -> list[str]:
        """The engines that may take a group now."""
        needed = row.group.batch - self.staleness
        if self.version < needed:
            return []
        return [name for name, version in self.engines.items() if version >= needed and self.running(name) < self.capacity]

    def running(self, name: str) -> int:
        return sum(row.lease is not None and row.lease.engine == name for row in self.rows.values())

    def _lose(self, name: str) -> dict[int, str]:
        self.engines.pop(name, None)
        lost = [row for row in self.rows.values() if row.lease and row.lease.engine == name]
        return {id: how for row in lost for id, how in self._back(row).items()}

    def _back(self, row: Row) -> dict[int, str]:
        row.failures, row.lease = row.failures + 1, None
        return {row.group.id: "failed"} if row.failures > self.retries else {}
