//! What the kernel offers beside KVM. Nothing here stops a machine from
//! running; each warning names the feature that goes without.

use std::fs::File;

use super::Check;
use super::system::System;

/// Linux merges neighbours, but a machine restored from many small layers can
/// need this many mappings and more.
const MAPPINGS: u64 = 65_530;

/// All of them.
pub fn checks(system: &System) -> Vec<Check> {
    [
        tun(system),
        userfaultfd(system),
        cgroups(system),
        user_namespaces(system),
        huge_pages(system),
        mappings(system),
    ]
    .into_iter()
    .collect()
}

fn tun(system: &System) -> Check {
    const ID: &str = "tun";
    let device = system.path("dev/net/tun");
    match File::options().read(true).write(true).open(&device) {
        Ok(_) => Check::ok(
            ID,
            "/dev/net/tun can be opened: machines can have a network.",
        ),
        Err(error) => Check::warn(
            ID,
            format!("/dev/net/tun cannot be opened ({error}): machines will have no network."),
            "Run `modprobe tun`; in a container, pass the device in.",
        ),
    }
}

fn userfaultfd(system: &System) -> Check {
    const ID: &str = "userfaultfd";
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .open(system.path("dev/userfaultfd"))
    };
    match system.number("proc/sys/vm/unprivileged_userfaultfd") {
        None => Check::warn(
            ID,
            "The kernel has no userfaultfd: memory cannot be restored page by page.",
            "Use a kernel with CONFIG_USERFAULTFD.",
        ),
        Some(1) => Check::ok(ID, "userfaultfd can be used by everyone."),
        Some(_) if nix::unistd::geteuid().is_root() || open().is_ok() => {
            Check::ok(ID, "userfaultfd can be used by this user.")
        }
        Some(_) => Check::warn(
            ID,
            "userfaultfd is for root only: this user cannot restore memory page by page.",
            "Give this user access to /dev/userfaultfd (Linux 6.1 or later).",
        ),
    }
}

fn cgroups(system: &System) -> Check {
    const ID: &str = "cgroup";
    const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];
    let Some(controllers) = system.read("sys/fs/cgroup/cgroup.controllers") else {
        return Check::warn(
            ID,
            "There is no cgroup v2 at /sys/fs/cgroup: machines cannot be limited with it.",
            "Boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 there.",
        );
    };
    let has = |name: &str| controllers.split(' ').any(|has| has == name);
    let missing: Vec<_> = NEEDED.into_iter().filter(|name| !has(name)).collect();
    match missing.is_empty() {
        true => Check::ok(ID, "cgroup v2 has the cpu, memory and pids controllers."),
        false => Check::warn(
            ID,
            format!("cgroup v2 lacks these controllers: {}.", missing.join(", ")),
            "Another hierarchy (cgroup v1) may hold them, or the kernel lacks them.",
        ),
    }
}

fn user_namespaces(system: &System) -> Check {
    const ID: &str = "user-namespaces";
    const WITHOUT: &str = "a jail needs root";
    let root = nix::unistd::geteuid().is_root();
    if system
        .number("proc/sys/user/max_user_namespaces")
        .unwrap_or(0)
        == 0
    {
        return Check::warn(
            ID,
            format!("There are no user namespaces: {WITHOUT}."),
            "Set `sysctl user.max_user_namespaces` to more than 0.",
        );
    }
    for (file, name, refused) in [
        (
            "proc/sys/kernel/unprivileged_userns_clone",
            "kernel.unprivileged_userns_clone",
            0,
        ),
        (
            "proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "kernel.apparmor_restrict_unprivileged_userns",
            1,
        ),
    ] {
        if !root && system.number(file) == Some(refused) {
            return Check::warn(
                ID,
                format!("User namespaces are not for ordinary users here: {WITHOUT}."),
                format!("Set `sysctl {name}={}`.", 1 - refused),
            );
        }
    }
    Check::ok(ID, "User namespaces can be made.")
}

fn huge_pages(system: &System) -> Check {
    const ID: &str = "huge-pages";
    let sized = "sys/kernel/mm/hugepages/hugepages-2048kB";
    match system.number(&format!("{sized}/nr_hugepages")) {
        None => Check::warn(
            ID,
            "The kernel has no huge pages of 2 MiB: machines cannot ask for them.",
            "Use a kernel with CONFIG_HUGETLBFS.",
        ),
        Some(0) => Check::ok(
            ID,
            "No huge pages are set aside; only machines that ask for them (huge_pages: 2M) need \
             some.",
        ),
        Some(all) => {
            let free = system
                .number(&format!("{sized}/free_hugepages"))
                .unwrap_or(0);
            Check::ok(ID, format!("{free} of {all} huge pages of 2 MiB are free."))
        }
    }
}

fn mappings(system: &System) -> Check {
    const ID: &str = "mappings";
    match system.number("proc/sys/vm/max_map_count") {
        Some(count) if count < MAPPINGS => Check::warn(
            ID,
            format!("A process may have only {count} mappings: long snapshot chains may not fit."),
            format!("Set `sysctl vm.max_map_count={MAPPINGS}` or more."),
        ),
        count => Check::ok(
            ID,
            format!("A process may have {} mappings.", count.unwrap_or(MAPPINGS)),
        ),
    }
}
