"""The table server as values: paths, argument vector, status table, and a systemd unit."""

from dataclasses import dataclass

from dsv41ctl.config.model import TableHost
from dsv41ctl.errors import ConfigError
from dsv41ctl.hosts.command import Command
from dsv41ctl.hosts.protocol import expand_home

__all__ = [
    "BUILD_PACKAGES",
    "STOP_LIMIT_S",
    "ServerPaths",
    "build_commands",
    "server_argv",
    "server_binary",
    "server_paths",
    "server_programs",
    "server_stop_command",
    "server_unit",
]

# From SIGTERM to gone: giving back 188 GiB takes the kernel a while.
STOP_LIMIT_S = 60
# What building the server takes on Debian and Ubuntu.
BUILD_PACKAGES = (
    "cmake",
    "ninja-build",
    "g++",
    "libssl-dev",
    "nlohmann-json3-dev",
    "libcli11-dev",
    "libfmt-dev",
    "doctest-dev",
)
# $1 pid file, $2 control socket, $3 exit file, $4 seconds. Ends what is proven to be our server: its argument vector
# names our socket. Just after a launch the pid file may still be missing; then there is an exit file or it comes.
_STOP = """tries=0
while [ ! -s "$1" ] && [ ! -e "$3" ] && [ "$tries" -lt 10 ] && [ -n "$5" ]; do sleep 0.2; tries=$((tries + 1)); done
pid=$(cat -- "$1" 2>/dev/null) || exit 0
ours() { { tr '\\0' '\\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qxF -- "$2"; }
ours "$@" || exit 0
kill -TERM "$pid"
tries=0
while ours "$@"; do
  [ "$tries" -lt $(($4 * 5)) ] || { echo "pid $pid has not ended $4 s after SIGTERM" >&2; exit 1; }
  sleep 0.2; tries=$((tries + 1))
done
"""
# sockaddr_un holds 108 bytes with its closing zero.
_SOCKET_PATH_LIMIT = 107


@dataclass(frozen=True)
class ServerPaths:
    """Where a table host keeps things; everything below `root`."""

    root: str

    @property
    def src(self) -> str:
        """Sources."""
        return f"{self.root}/src"

    @property
    def build(self) -> str:
        """CMake's build directory."""
        return f"{self.root}/build"

    @property
    def bin(self) -> str:
        """Installed binaries."""
        return f"{self.root}/bin"

    @property
    def stamp(self) -> str:
        """What the binaries were built from."""
        return f"{self.bin}/stamp.json"

    @property
    def run(self) -> str:
        """State of the running server."""
        return f"{self.root}/run"

    @property
    def manifest(self) -> str:
        """The manifest that it serves by."""
        return f"{self.run}/manifest.json"

    @property
    def control(self) -> str:
        """Its control socket."""
        return f"{self.run}/control.sock"

    @property
    def log(self) -> str:
        """Its log."""
        return f"{self.run}/server.log"

    @property
    def pid(self) -> str:
        """Its pid file."""
        return f"{self.run}/server.pid"

    @property
    def exit(self) -> str:
        """Exit status of a server that ended."""
        return f"{self.run}/server.exit"

    @property
    def start(self) -> str:
        """What the last `server start` started."""
        return f"{self.run}/start.json"


def server_paths(table_host: TableHost, home: str) -> ServerPaths:
    """A table host's paths, `~` expanded."""
    return ServerPaths(expand_home(table_host.root, home))


def server_binary(table_host: TableHost, home: str) -> str:
    """Path of engram_server on the host."""
    if "/" in table_host.binary:
        return expand_home(table_host.binary, home)
    return f"{server_paths(table_host, home).bin}/{table_host.binary}"


def server_argv(table_host: TableHost, home: str) -> Command:
    """`engram_server serve ...`, the same every time for the same cluster file.

    Raises:
        ConfigError: the control socket's path is too long for a socket.
    """
    paths = server_paths(table_host, home)
    if len(paths.control.encode()) > _SOCKET_PATH_LIMIT:
        raise ConfigError(
            f"table host {table_host.name}: {paths.control} is too long for a socket "
            f"({len(paths.control.encode())} bytes, at most {_SOCKET_PATH_LIMIT})",
            hint="a shorter table_hosts.root",
        )
    own = table_host.manifest
    argv = [server_binary(table_host, home), "serve"]
    argv += ["--manifest", paths.manifest if own is None else expand_home(own, home)]
    argv += ["--model-dir", expand_home(table_host.model_dir, home)]
    for listener in table_host.listeners:
        argv += ["--listen", listener]
    argv += ["--control", paths.control, "--threads", str(table_host.threads)]
    argv += ["--max-rows", str(table_host.max_rows)]
    if table_host.layers is not None:
        argv += ["--layers", ",".join(str(layer) for layer in table_host.layers)]
    if table_host.key_file is not None:
        argv += ["--key-file", expand_home(table_host.key_file, home)]
    if not table_host.huge_pages:
        argv += ["--no-huge-pages"]
    argv += ["--log", paths.log, "--pid-file", paths.pid]
    return (*argv, *table_host.extra_args)


def server_stop_command(table_host: TableHost, home: str, *, launched: bool = False) -> Command:
    """Ends the server by SIGTERM and waits until it is gone; nothing when it does not run.

    Args:
        table_host: its entry.
        home: the host's home.
        launched: it was launched a moment ago: wait for its pid file.
    """
    paths = server_paths(table_host, home)
    words = (paths.pid, paths.control, paths.exit, str(STOP_LIMIT_S), "launched" if launched else "")
    return ("sh", "-c", _STOP, "dsv41ctl", *words)


def build_commands(table_host: TableHost, home: str) -> tuple[Command, Command]:
    """Configure and build, release, two jobs: the host may be serving meanwhile."""
    paths = server_paths(table_host, home)
    configure: Command = (
        "cmake", "-S", paths.src, "-B", paths.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "--log-level=WARNING",
    )  # fmt: skip
    build: Command = ("ninja", "-C", paths.build, "-j2", *server_programs(table_host))
    return configure, build


def server_programs(table_host: TableHost) -> tuple[str, ...]:
    """The programs that are built and installed; a binary given by path is somebody else's."""
    own = {table_host.binary} if "/" not in table_host.binary else set()
    return tuple(sorted({"engram_server", "engram_check", *own}))


def server_unit(table_host: TableHost) -> str:
    """A hardened unit for `systemctl --user`; printed, never enabled. systemd's %h is the home.

    Settings that need capabilities (bounding sets, OOM score, clock and module protection) are left out:
    a user's manager cannot apply them, and the unit would not start.
    """
    argv = list(server_argv(table_host, "%h"))
    paths = server_paths(table_host, "%h")
    words = [_unit_quote(str(word)) for word in argv]
    command = " \\\n    ".join(_grouped(words))
    timeout = int(table_host.ready_timeout_s) + 60
    return f"""# {table_host.name}: ~/.config/systemd/user/dsv41-engram.service
# systemctl --user daemon-reload && systemctl --user start dsv41-engram
[Unit]
Description=Engram table server (dsv41ctl)
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=3

[Service]
Type=exec
ExecStartPre=/bin/mkdir -p {_unit_quote(paths.run)}
ExecStart={command}
ExecStartPost={_unit_quote(server_binary(table_host, "%h"))} status --control {_unit_quote(paths.control)} \
--wait-ready {int(table_host.ready_timeout_s)}
TimeoutStartSec={timeout}
TimeoutStopSec=30
KillSignal=SIGTERM
# 3: a table does not match its manifest. Starting again would not help.
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=2 3
# The response buffers are registered with the NIC; the tables are not.
LimitMEMLOCK=4G
LimitNOFILE=4096
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={_unit_quote(paths.root)}
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target
"""


def _unit_quote(word: str) -> str:
    if word and all(char.isalnum() or char in "%/._:,-=[]@+~" for char in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'


def _grouped(words: list[str]) -> list[str]:
    """A flag and its value stay on one line."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--") and lines[-1].startswith("--") and " " not in lines[-1]:
            lines[-1] += f" {word}"
        elif len(lines) == 1 and word == "serve":
            lines[-1] += " serve"
        else:
            lines.append(word)
    return lines
