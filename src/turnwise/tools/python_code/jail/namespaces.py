"""Namespaces for one process: no other processes, no network, hardly any files.

The root is an empty filesystem in memory with, read-only, what Python needs to run, and one folder
to write to, of limited size. All of it ends with the process, also if the parent is killed.
"""

from __future__ import annotations

import os
import stat
import sys

from . import WORK_FOLDER, system

_SPACES = (
    system.CLONE_NEWNS
    | system.CLONE_NEWPID
    | system.CLONE_NEWNET
    | system.CLONE_NEWIPC
    | system.CLONE_NEWUTS
)
_NOBODY = 65534
# Root gives each run a user of its own, so that runs at the same time share no limit.
_FIRST_USER = 0x70000000

_SYSTEM_PATHS = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/nix/store",
    "/usr/share/zoneinfo",
    "/etc/ld.so.cache",
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_READ_ONLY = system.ATTR_RDONLY | system.ATTR_NOSUID | system.ATTR_NODEV
# While the root is built: the folders of an overlay, which needs two; one is empty.
_LOWER, _EMPTY = "/lower", "/empty"


def enter_namespaces() -> int:
    """Creates namespaces for the children of this process; returns the user id for them.

    Other users than root get the rights for it in a user namespace, where they are nobody already;
    then the returned id is -1.
    """
    user, group = os.getuid(), os.getgid()
    try:
        system.unshare(_SPACES)
        new_user = _FIRST_USER + os.getpid()
    except PermissionError:
        system.unshare(_SPACES | system.CLONE_NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{_NOBODY} {user} 1")
        _write("/proc/self/gid_map", f"{_NOBODY} {group} 1")
        new_user = -1
    system.set_host_name("sandbox")
    return new_user


def build_root(packages: list[str], disk_mb: int, num_files: int) -> None:
    """Replaces the root by an empty one with what Python needs."""
    # Resolved now: an absolute symlink would lead elsewhere in the new root.
    sources = {path: os.path.realpath(path) for path in _wanted(packages)}
    composed = [path for path, source in sources.items() if _holds_mounts(source)]
    safe = system.MS_NOSUID | system.MS_NODEV
    system.mount("none", "/", "", system.MS_REC | system.MS_PRIVATE)
    system.mount("tmpfs", "/tmp", "tmpfs", safe, "size=1m,mode=755")
    os.mkdir("/tmp/old")
    system.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    for folder in (_LOWER, _EMPTY):
        os.mkdir(folder)
    for path, source in sources.items():
        if path in composed or not _show_copy(path, f"/old{source}"):
            _show(path, f"/old{source}", _READ_ONLY)
            for package in packages:
                if f"{package}/".startswith(f"{path}/"):
                    _refuse_pipes_and_sockets(package)
    for name in _DEVICES:
        # Read-only, so that permissions cannot be changed; a device can still be written to.
        _show(f"/dev/{name}", f"/old/dev/{name}", system.ATTR_RDONLY | system.ATTR_NOSUID)
    os.mkdir(WORK_FOLDER)
    options = f"size={disk_mb}m,nr_inodes={num_files},mode=1777"
    system.mount("tmpfs", WORK_FOLDER, "tmpfs", safe, options)
    if not os.path.exists("/tmp"):  # Python itself may be installed there
        os.symlink(WORK_FOLDER, "/tmp")
    system.unmount("/old")
    os.rmdir("/old")
    os.rmdir(_LOWER)
    system.set_mount_attributes("/", system.ATTR_RDONLY, recursive=False)
    os.chdir(WORK_FOLDER)


def become_nobody(user: int) -> None:
    """Drops all rights."""
    if user >= 0:
        os.setgroups([])
        try:
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except OSError:  # a container may have few user ids
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    system.drop_capabilities()


def _wanted(packages: list[str]) -> list[str]:
    """Returns shared libraries, the standard library and the packages; none inside another."""
    prefixes = sorted({sys.base_prefix, sys.base_exec_prefix})
    python = [f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")]
    wanted: list[str] = []
    # Outer folders first: each is mounted with all its content.
    for path in sorted([*_SYSTEM_PATHS, *python, *packages], key=lambda path: path.count("/")):
        inside = any(f"{path}/".startswith(f"{other}/") for other in wanted)
        if os.path.exists(path) and not inside:
            wanted.append(path)
    return wanted


def _holds_mounts(folder: str) -> bool:
    """Whether something is mounted below the folder; an overlay would not show it."""
    with open("/proc/self/mountinfo") as file:
        return any(line.split()[4].startswith(f"{folder}/") for line in file)


def _show_copy(path: str, source: str) -> bool:
    """Mounts a folder as an overlay; returns False if the kernel cannot.

    In an overlay, pipes, sockets, locks and leases are not shared with the host: a named pipe in it
    does not reach a process of the host.
    """
    if not os.path.isdir(source):
        return False
    try:
        # By a name without characters that are special in the options.
        system.mount(source, _LOWER, "", system.MS_BIND)
    except OSError:
        return False
    os.makedirs(path)
    flags = system.MS_RDONLY | system.MS_NOSUID | system.MS_NODEV
    options = f"lowerdir={_LOWER}:{_EMPTY},redirect_dir=nofollow,metacopy=off"
    try:
        system.mount("overlay", path, "overlay", flags, options)
    except OSError:
        os.rmdir(path)
        return False
    finally:
        system.unmount(_LOWER)
    return True


def _show(path: str, source: str, attributes: int) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(source):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT))
    system.mount(source, path, "", system.MS_BIND | system.MS_REC)
    system.set_mount_attributes(path, attributes, recursive=True)


def _refuse_pipes_and_sockets(folder: str) -> None:
    """Refuses a folder with named pipes or sockets, which reach the host even if read-only."""
    for parent, _, names in os.walk(folder):
        for name in names:
            file = os.path.join(parent, name)
            kind = stat.S_IFMT(os.lstat(file).st_mode)
            if kind in (stat.S_IFIFO, stat.S_IFSOCK):
                raise OSError(f"packages: {file} is a named pipe or a socket. Remove it")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
