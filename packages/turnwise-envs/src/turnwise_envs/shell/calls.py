"""The system calls that a sandbox refuses, as a filter for the kernel (seccomp, in classic BPF).

Refused are those that take memory which no limit on processes or files counts, those that make namespaces and mounts, and parts of the
kernel that a terminal does not need. The numbers are known for x86-64 and 64-bit ARM; elsewhere there is no filter.
"""

from __future__ import annotations

import platform
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # the column below, and the kernel's name for it
REFUSED = {  # (x86-64, 64-bit ARM)
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196), "shmdt": (67, 197),
    "semget": (64, 190), "semctl": (66, 191), "semtimedop": (220, 192), "semop": (65, 193),
    "msgget": (68, 186), "msgctl": (71, 187), "msgrcv": (70, 188), "msgsnd": (69, 189), "mq_open": (240, 180),
    "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262), "vmsplice": (278, 75),
}  # fmt: skip
CLONE, CLONE3, UNSHARE, MMAP, FCNTL, SOCKETS = (56, 220), (435, 435), (272, 97), (9, 222), (72, 25), ((41, 198), (53, 199))
SET_OPTION = (54, 208)
NAMESPACES = 0x7E020000  # flags of clone that make a namespace
TIME_NAMESPACE = 0x80  # for unshare alone: in clone these bits are a signal
SHARED, ANONYMOUS = 0x01, 0x20  # memory that stays after it is unmapped, in no file
SET_PIPE_SIZE = 1031
SET_LOCKS = (6, 7, 37, 38)  # of a part of a file: one process may have millions
SOCKET_LEVEL, BUFFER_SIZES = 1, (7, 8)
FAMILIES = (1, 2, 10, 16)  # sockets: local, IPv4, IPv6, netlink
X32 = 0x40000000  # a second set of numbers on x86-64

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
Step = tuple[int, int, int, int]  # code, how far to jump if true, if not, value


def call_filter(grouped: bool, machine: str | None = None) -> bytes:
    """The filter for this machine; empty where it is not known. Sizes of socket buffers are not set, though the program is told that they
    are, and neither are locks of parts of files unless the kernel counts all memory of the sandbox (`grouped`)."""
    known = ARCHITECTURES.get(machine or platform.machine())
    if known is None:
        return b""
    column, architecture = known
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), _refuse(ENOSYS), (LOAD, 0, 0, 0), (AT_LEAST, 0, 1, X32), _refuse(ENOSYS)]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            steps += _when(number, [_refuse()])
    steps += _when(CLONE3[column], [_refuse(ENOSYS)])  # its flags cannot be seen; programs then use clone
    steps += _when(CLONE[column], [_argument(0), (ANY_BIT, 0, 1, NAMESPACES), _refuse()])
    steps += _when(UNSHARE[column], [_argument(0), (ANY_BIT, 0, 1, NAMESPACES | TIME_NAMESPACE), _refuse()])
    steps += _when(MMAP[column], [_argument(3), (ANY_BIT, 0, 2, ANONYMOUS), (ANY_BIT, 0, 1, SHARED), _refuse()])
    locks = [] if grouped else [step for command in SET_LOCKS for step in ((EQUAL, 0, 1, command), _refuse(0))]
    steps += _when(FCNTL[column], [_argument(1), (EQUAL, 0, 1, SET_PIPE_SIZE), _refuse(), *locks])
    sizes = [step for option in BUFFER_SIZES for step in ((EQUAL, 0, 1, option), _refuse(0))]
    steps += _when(SET_OPTION[column], [_argument(1), (EQUAL, 0, 1 + len(sizes), SOCKET_LEVEL), _argument(2), *sizes])
    for socket in SOCKETS:
        allowed = [(EQUAL, len(FAMILIES) - at, 0, family) for at, family in enumerate(FAMILIES)]
        steps += _when(socket[column], [_argument(0), *allowed, _refuse(EAFNOSUPPORT)])
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _refuse(error: int = EPERM) -> Step:
    return RETURN, 0, 0, REFUSE | error


def _argument(number: int) -> Step:
    """Load the lower half of an argument."""
    return LOAD, 0, 0, 16 + 8 * number


def _when(number: int, steps: list[Step]) -> list[Step]:
    """Do these steps for this call, and allow it if they come to their end."""
    return [(EQUAL, 0, len(steps) + 1, number), *steps, (RETURN, 0, 0, ALLOW)]
