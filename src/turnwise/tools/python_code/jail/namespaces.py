"""A world of its own for one process: no other processes, no network, hardly any files.

Its root is an empty filesystem in memory that holds, read-only, what Python needs to run, and one
place to write, of limited size. All of it ends with the process, also if we are killed.
"""

from __future__ import annotations

import os
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


def leave_the_world() -> int:
    """New namespaces, for the children of this process; the user id that they shall take.

    Root needs nothing more. Anybody else gets the rights for it in a user namespace, where it is
    nobody, and -1 says that it is so already.
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


def build_root(packages: list[str], disk_bytes: int, num_files: int) -> None:
    """Replace the root by an empty one with what Python needs."""
    # Looked up now: an absolute symlink would lead elsewhere once the root has changed.
    sources = {path: os.path.realpath(path) for path in _wanted(packages)}
    safe = system.MS_NOSUID | system.MS_NODEV
    system.mount("none", "/", "", system.MS_REC | system.MS_PRIVATE)
    system.mount("tmpfs", "/tmp", "tmpfs", safe, "size=1m,mode=755")
    os.mkdir("/tmp/old")
    system.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    for path, source in sources.items():
        _show(path, f"/old{source}", system.ATTR_RDONLY | system.ATTR_NOSUID | system.ATTR_NODEV)
    for name in _DEVICES:
        _show(f"/dev/{name}", f"/old/dev/{name}", system.ATTR_NOSUID)
    os.mkdir(WORK_FOLDER)
    options = f"size={disk_bytes},nr_inodes={num_files},mode=1777"
    system.mount("tmpfs", WORK_FOLDER, "tmpfs", safe, options)
    if not os.path.exists("/tmp"):  # Python itself may be installed there
        os.symlink(WORK_FOLDER, "/tmp")
    system.unmount("/old")
    os.rmdir("/old")
    system.set_mount_attributes("/", system.ATTR_RDONLY, recursive=False)
    os.chdir(WORK_FOLDER)


def become_nobody(user: int) -> None:
    """Give up all rights."""
    if user >= 0:
        os.setgroups([])
        try:
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        except OSError:  # a container may know few users
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    system.drop_capabilities()


def _wanted(packages: list[str]) -> list[str]:
    """Shared libraries, the standard library, and the packages; none inside another."""
    prefixes = sorted({sys.base_prefix, sys.base_exec_prefix})
    python = [f"{prefix}/{name}" for prefix in prefixes for name in ("lib", "lib64")]
    wanted: list[str] = []
    for path in [*_SYSTEM_PATHS, *python, *packages]:
        inside = any(f"{path}/".startswith(f"{other}/") for other in wanted)
        if os.path.exists(path) and not inside:
            wanted.append(path)
    return wanted


def _show(path: str, source: str, attributes: int) -> None:
    """Put something of the old root into the new one."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(source):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT))
    system.mount(source, path, "", system.MS_BIND | system.MS_REC)
    system.set_mount_attributes(path, attributes, recursive=True)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
