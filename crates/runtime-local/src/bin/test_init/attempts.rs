//! Attempts to break out, one line each. An attempt returns what it got hold of; an error is what
//! is hoped for.
#![expect(
    unsafe_code,
    reason = "attempts make system calls that no library offers, with arguments that hurt nobody"
)]

use std::{
    ffi::CString,
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::{linux::net::SocketAddrExt as _, unix::net::UnixStream},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

type Got = io::Result<String>;
/// Things of the host that a test has prepared: name and value.
type Host<'a> = dyn Fn(&str) -> &'a str + 'a;
type Attempt = (&'static str, fn(&Host<'_>) -> Got);

#[rustfmt::skip]
const ATTEMPTS: &[Attempt] = &[
    // The host's files
    ("read a secret file of the host", |h| fs::read_to_string(h("secret"))),
    ("read the host's secret through /proc/1/root", |h| fs::read_to_string(format!("/proc/1/root{}", h("secret")))),
    ("read the host's secret through /proc/1/cwd", |h| fs::read_to_string(format!("/proc/1/cwd/..{}", h("secret")))),
    ("read the host's secret through a symbolic link", |h| through_link(h("secret"))),
    ("read the host's secret after chroot and many ..", |h| through_chroot(h("secret"))),
    ("see the home of the host's root", |_| any_in("/root", &[])),
    ("see homes of the host's users", |_| any_in("/home", &["user"])),
    ("see the host's packages", |_| any_in("/var/lib/dpkg", &[])),
    ("see the host's logs", |_| any_in("/var/log", &[])),
    ("see what the host has in /usr/local", |_| any_in("/usr/local/bin", &["python"])),
    ("see the host's boot files", |_| any_in("/boot", &[])),
    ("read a password of the host", |_| line_with("/etc/shadow", "$")),
    ("read the server's state", |h| fs::read_to_string(h("state"))),
    ("open a file of the host by its handle", |_| by_handle()),
    ("write a program of the host", |_| write("/usr/bin/dormouse-was-here", "x")),
    ("change the mode of a program of the host", |_| fs::set_permissions("/usr/bin/env", std::os::unix::fs::PermissionsExt::from_mode(0o777)).map(|()| "changed".into())),
    ("change the owner of a program of the host", |_| std::os::unix::fs::chown("/usr/bin/env", Some(0), Some(0)).map(|()| "changed".into())),
    ("write the init program", |_| write("/run/dormouse/init", "x")),
    ("write the init program through /proc/1/exe", |_| write("/proc/1/exe", "x")),
    ("write beside the init program", |_| write("/run/dormouse/new", "x")),
    ("replace the arming file", |_| write("/run/dormouse/arming.json", "{}")),
    ("find a descriptor left open", |_| descriptors("/proc/self/fd")),
    ("find a descriptor left open in the first process", |_| descriptors("/proc/1/fd")),
    // Mounts
    ("mount a tmpfs", |_| mount("tmpfs", "tmpfs", 0)),
    ("mount another proc", |_| mount("proc", "proc", 0)),
    ("mount a cgroup hierarchy", |_| mount("cgroup", "cgroup", 0)),
    ("mount the unified cgroup tree", |_| mount("none", "cgroup2", 0)),
    ("mount the host's disk", |_| mount("/dev/vda", "ext4", 0)),
    ("mount the device filesystem", |_| mount("devtmpfs", "devtmpfs", 0)),
    ("bind the root elsewhere", |_| mount("/", "none", libc::MS_BIND)),
    ("remount /usr writable", |_| mount_at("none", "/usr", "none", libc::MS_REMOUNT | libc::MS_BIND)),
    ("remount /proc/sys writable", |_| mount_at("none", "/proc/sys", "none", libc::MS_REMOUNT | libc::MS_BIND)),
    ("unmount /proc/sys", |_| path_call(libc::SYS_umount2, "/proc/sys", 2)),
    ("unmount a hidden file", |_| path_call(libc::SYS_umount2, "/proc/kcore", 2)),
    ("unmount the boot id", |_| path_call(libc::SYS_umount2, "/proc/sys/kernel/random/boot_id", 2)),
    ("unmount /usr", |_| path_call(libc::SYS_umount2, "/usr", 2)),
    ("change the root", |_| two_paths(libc::SYS_pivot_root, ".", ".")),
    ("open a filesystem", |_| path_call(libc::SYS_fsopen, "tmpfs", 0)),
    ("clone a mount", |_| call(libc::SYS_open_tree, [libc::AT_FDCWD as i64, c"/".as_ptr() as i64, 1, 0, 0])),
    ("change a mount's attributes", |_| call(libc::SYS_mount_setattr, [libc::AT_FDCWD as i64, c"/usr".as_ptr() as i64, 0, [0_u64, 1, 0, 0].as_ptr() as i64, 32])),
    // Namespaces
    ("make a user namespace", |_| call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER), 0, 0, 0, 0])),
    ("make a mount namespace", |_| call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWNS), 0, 0, 0, 0])),
    ("make a network namespace", |_| call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWNET), 0, 0, 0, 0])),
    ("make a cgroup namespace", |_| call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWCGROUP), 0, 0, 0, 0])),
    ("make a time namespace", |_| call(libc::SYS_unshare, [0x80, 0, 0, 0, 0])),
    ("clone into a user namespace", |_| cloned(libc::SYS_clone, [i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0, 0, 0])),
    ("clone into a user namespace by clone3", |_| clone3()),
    ("join a namespace", |_| join("/proc/1/ns/mnt")),
    ("write the map of user ids", |_| write("/proc/self/uid_map", "0 0 1")),
    ("become a user of the host", |_| call(libc::SYS_setresuid, [70_000, 70_000, 70_000, 0, 0])),
    ("give a file to a user of the host", |_| give_away(70_000)),
    // Other processes
    ("see a process of the host", |h| fs::read_to_string(format!("/proc/{}/cmdline", h("pid")))),
    ("see the server among the processes", |_| processes_like("isolation")),
    ("signal a process of the host", |h| call(libc::SYS_kill, [number(h("pid")), 0, 0, 0, 0])),
    ("signal a process of the host by a pidfd", |h| call(libc::SYS_pidfd_open, [number(h("pid")), 0, 0, 0, 0])),
    ("trace a process of the host", |h| call(libc::SYS_ptrace, [i64::from(libc::PTRACE_SEIZE), number(h("pid")), 0, 0, 0])),
    ("read the memory of a process of the host", |h| fs::read_to_string(format!("/proc/{}/mem", h("pid")))),
    ("see a process of another sandbox", |h| processes_like(h("other"))),
    ("see a file of another sandbox", |h| fs::read_to_string(h("file"))),
    ("send to a queue of the host", |h| call(libc::SYS_msgget, [number(h("queue")), 0, 0, 0, 0])),
    ("attach memory of the host", |h| call(libc::SYS_shmget, [number(h("queue")), 0, 0, 0, 0])),
    // The kernel
    ("load a module", |_| call(libc::SYS_init_module, [b"x".as_ptr() as i64, 1, c"".as_ptr() as i64, 0, 0])),
    ("load a module from a file", |_| call(libc::SYS_finit_module, [0, c"".as_ptr() as i64, 0, 0, 0])),
    ("remove a module", |_| path_call(libc::SYS_delete_module, "overlay", 0)),
    ("load another kernel", |_| call(libc::SYS_kexec_load, [0, 0, 0, 0, 0])),
    ("restart the host", |_| call(libc::SYS_reboot, [0xfee1_dead, 672_274_793, 0, 0, 0])),
    ("set the clock", |_| call(libc::SYS_clock_settime, [0, [0_i64, 0].as_ptr() as i64, 0, 0, 0])),
    ("change the host name", |_| path_call(libc::SYS_sethostname, "owned", 5)),
    ("swap to a file", |_| path_call(libc::SYS_swapon, "/tmp/swap", 0)),
    ("turn on accounting", |_| path_call(libc::SYS_acct, "/tmp/acct", 0)),
    ("use quotas", |_| call(libc::SYS_quotactl, [0, 0, 0, 0, 0])),
    ("read the kernel's log", |_| log()),
    ("read the kernel's log from /proc/kmsg", |_| content("/proc/kmsg")),
    ("read the kernel's log from /dev/kmsg", |_| content("/dev/kmsg")),
    ("read the kernel's memory", |_| content("/proc/kcore")),
    ("read the kernel's symbols", |_| content("/proc/kallsyms")),
    ("read the kernel's timers", |_| content("/proc/timer_list")),
    ("read keys", |_| content("/proc/keys")),
    ("read firmware", |_| any_in("/sys/firmware", &[])),
    ("see debug files", |_| any_in("/sys/kernel/debug", &[])),
    ("see trace files", |_| any_in("/sys/kernel/tracing", &[])),
    ("load a program into the kernel", |_| call(libc::SYS_bpf, [0, 0, 0, 0, 0])),
    ("count the processor's events", |_| call(libc::SYS_perf_event_open, [0, 0, 0, 0, 0])),
    ("use io_uring", |_| call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0])),
    ("handle page faults", |_| call(libc::SYS_userfaultfd, [1, 0, 0, 0, 0])),
    ("add a key", |_| call(libc::SYS_add_key, [c"user".as_ptr() as i64, c"x".as_ptr() as i64, c"x".as_ptr() as i64, 1, -3])),
    ("reach a keyring", |_| call(libc::SYS_keyctl, [0, -3, 0, 0, 0])),
    ("use the processor's ports", |_| x86_ports()),
    ("make a call of another architecture", |_| call(0x4000_0000 | libc::SYS_getpid, [0, 0, 0, 0, 0])),
    ("read the host's boot id", |h| line_with("/proc/sys/kernel/random/boot_id", h("boot"))),
    ("write the boot id", |_| write("/run/dormouse/boot_id", "x")),
    // Knobs
    ("set the core pattern", |_| write("/proc/sys/kernel/core_pattern", "|/tmp/x")),
    ("set the program for modules", |_| write("/proc/sys/kernel/modprobe", "/tmp/x")),
    ("set the program for device events", |_| write("/sys/kernel/uevent_helper", "/tmp/x")),
    ("register a binary format", |_| write("/proc/sys/fs/binfmt_misc/register", ":x:M::x::/tmp/x:")),
    ("press the system request key", |_| write("/proc/sysrq-trigger", "h")),
    ("allow system requests", |_| write("/proc/sys/kernel/sysrq", "1")),
    ("drop the host's caches", |_| write("/proc/sys/vm/drop_caches", "1")),
    ("overcommit the host's memory", |_| write("/proc/sys/vm/overcommit_memory", "1")),
    ("forward packets", |_| write("/proc/sys/net/ipv4/ip_forward", "1")),
    ("raise the number of processes", |_| write("/proc/sys/kernel/pid_max", "100000")),
    ("put the host to sleep", |_| write("/sys/power/state", "mem")),
    ("set a release agent", |_| release_agent()),
    ("leave the cgroup", |_| write("/sys/fs/cgroup/unified/cgroup.procs", "0")),
    ("be spared when memory runs out", |_| write("/proc/self/oom_score_adj", "-1000")),
    // Devices
    ("make a node of the host's disk", |_| node(libc::S_IFBLK, 254, 0)),
    ("make a node of the host's memory", |_| node(libc::S_IFCHR, 1, 1)),
    ("make a whiteout", |_| node(libc::S_IFCHR, 0, 0)),
    ("open the host's disk", |_| content("/dev/vda")),
    ("open the host's memory", |_| content("/dev/mem")),
    ("open the virtual machine monitor", |_| content("/dev/kvm")),
    ("open the tunnel device", |_| content("/dev/net/tun")),
    ("open the fuse device", |_| content("/dev/fuse")),
    ("open a loop device", |_| content("/dev/loop-control")),
    ("open the host's console", |_| content("/dev/console")),
    ("type into a terminal", |_| call(libc::SYS_ioctl, [0, libc::TIOCSTI as i64, c"x".as_ptr() as i64, 0, 0])),
    // Privileges
    ("run a setuid program as root", |_| setuid_program()),
    ("become root", |_| become_root()),
    ("raise a capability", |_| raise_capability()),
    ("run a program with file capabilities", |_| file_capability()),
    ("take more priority", |_| call(libc::SYS_setpriority, [0, 0, -20, 0, 0])),
    ("run in real time", |_| call(libc::SYS_sched_setscheduler, [0, 1, [1_i32].as_ptr() as i64, 0, 0])),
    ("raise the limit of open files", |_| raise_limit()),
    ("read the arming as another user", |_| arming()),
    // Network
    ("connect to a port of the host", |h| connect(&format!("127.0.0.1:{}", h("port")))),
    ("connect to a port of the host by the gateway's address", |h| connect(&format!("{}:{}", h("gateway"), h("port")))),
    ("connect to a port of the host by its own address", |h| connect(&format!("{}:{}", h("address"), h("port")))),
    ("connect to a port of the host by IPv6", |h| by_version_6(h("port"))),
    ("connect to another sandbox", |h| connect(&format!("{}:9000", h("neighbour")))),
    ("send a datagram to another sandbox", |h| datagram("0.0.0.0:0", &format!("{}:9000", h("neighbour")))),
    ("send a datagram to the host", |h| datagram("0.0.0.0:0", &format!("{}:{}", h("gateway"), h("port")))),
    ("send from a neighbour's address", |h| datagram(&format!("{}:0", h("neighbour")), "203.0.113.1:9")),
    ("connect to the metadata address", |_| connect("169.254.169.254:80")),
    ("connect to a private network", |_| connect("10.0.0.1:80")),
    ("connect to another private network", |_| connect("192.168.0.1:80")),
    ("speak to all of the network", |_| datagram("0.0.0.0:0", "255.255.255.255:9")),
    ("speak to a group", |_| datagram("0.0.0.0:0", "224.0.0.1:9")),
    ("take another address", |h| run_program("/sbin/ip", &["address", "add", h("neighbour"), "dev", "eth0"])),
    ("take another route", |_| run_program("/sbin/ip", &["route", "replace", "default", "dev", "lo"])),
    ("connect to an abstract socket of the host", |h| abstract_socket(h("socket"))),
    ("connect to a socket file of the host", |h| UnixStream::connect(h("path")).map(|_| "connected".into())),
    ("open a raw socket", |_| socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("open a packet socket", |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300)),
    ("open a socket to the hypervisor", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("open a socket of the kernel's ciphers", |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    ("change the network", |_| run_program("/sbin/ip", &["link", "add", "dummy0", "type", "dummy"])),
    ("change the firewall", |_| firewall()),
    // Exhaustion
    ("have more processes than allowed", |h| too_many_processes(number(h("pids")))),
    ("use more memory than allowed", |h| too_much_memory(number(h("memory")))),
    ("have more open files than allowed", |_| too_many_files()),
    ("fill /dev/shm", |_| fill("/dev/shm/x", 80)),
    ("fill /dev", |_| fill("/dev/x", 2)),
];

pub(crate) fn list() {
    for (name, _) in ATTEMPTS {
        println!("{name}");
    }
}

/// Makes an attempt: ends with 0 if it was refused, with 1 and what it got if not.
pub(crate) fn run(name: &str, host: &[&str]) {
    let (_, attempt) = ATTEMPTS.iter().find(|(n, _)| *n == name).unwrap();
    let find = |key: &str| {
        let mut pairs = host.iter().filter_map(|pair| pair.split_once('='));
        pairs.find(|(k, _)| *k == key).unwrap().1
    };
    match attempt(&find) {
        Err(error) => println!("{error}"),
        Ok(got) => {
            println!("{}", got.chars().take(200).collect::<String>());
            std::process::exit(1);
        }
    }
}

fn refused(why: &str) -> Got {
    Err(io::Error::other(why))
}

fn number(text: &str) -> i64 {
    text.parse().unwrap()
}

fn result(value: i64) -> Got {
    if value < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(format!("it returned {value}"))
}

fn call(number: i64, [a, b, c, d, e]: [i64; 5]) -> Got {
    // SAFETY: pointers among the arguments are to literals or live values of the caller.
    result(unsafe { libc::syscall(number, a, b, c, d, e, 0) })
}

/// The same, where a child may be made: it must not go on as a second parent.
fn cloned(number: i64, [a, b, c, d, e]: [i64; 5]) -> Got {
    // SAFETY: as above, and a child ends at once.
    unsafe {
        match libc::syscall(number, a, b, c, d, e, 0) {
            0 => libc::_exit(0),
            value => result(value),
        }
    }
}

fn clone3() -> Got {
    let mut args = [0_u64; 11];
    args[0] = libc::CLONE_NEWUSER as u64;
    args[4] = libc::SIGCHLD as u64;
    cloned(libc::SYS_clone3, [args.as_ptr() as i64, 88, 0, 0, 0])
}

fn path_call(number: i64, path: &str, argument: i64) -> Got {
    let path = CString::new(path)?;
    call(number, [path.as_ptr() as i64, argument, 0, 0, 0])
}

fn two_paths(number: i64, a: &str, b: &str) -> Got {
    let (a, b) = (CString::new(a)?, CString::new(b)?);
    call(number, [a.as_ptr() as i64, b.as_ptr() as i64, 0, 0, 0])
}

fn mount(source: &str, kind: &str, flags: u64) -> Got {
    fs::create_dir_all("/tmp/mount").ok();
    mount_at(source, "/tmp/mount", kind, flags)
}

fn mount_at(source: &str, target: &str, kind: &str, flags: u64) -> Got {
    let (source, target, kind) = (
        CString::new(source)?,
        CString::new(target)?,
        CString::new(kind)?,
    );
    call(
        libc::SYS_mount,
        [
            source.as_ptr() as i64,
            target.as_ptr() as i64,
            kind.as_ptr() as i64,
            flags as i64,
            0,
        ],
    )
}

fn any_in(path: &str, expected: &[&str]) -> Got {
    let names = fs::read_dir(path)?
        .filter_map(Result::ok)
        .map(|e| e.file_name().to_string_lossy().into_owned());
    let names: Vec<_> = names.filter(|n| !expected.contains(&n.as_str())).collect();
    if names.is_empty() {
        refused("nothing is there")
    } else {
        Ok(names.join(" "))
    }
}

fn line_with(path: &str, part: &str) -> Got {
    let text = fs::read_to_string(path)?;
    text.lines()
        .find(|l| l.contains(part))
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other("no such line"))
}

/// The first bytes of a file, if it has any.
fn content(path: &str) -> Got {
    let mut bytes = [0; 64];
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags_nonblock()
        .open(path);
    match file?.read(&mut bytes)? {
        0 => refused("it is empty"),
        _ => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

trait NonBlock {
    fn custom_flags_nonblock(&mut self) -> &mut Self;
}

impl NonBlock for fs::OpenOptions {
    fn custom_flags_nonblock(&mut self) -> &mut Self {
        std::os::unix::fs::OpenOptionsExt::custom_flags(self, libc::O_NONBLOCK)
    }
}

fn write(path: &str, text: &str) -> Got {
    let create = path.starts_with("/usr") || path.starts_with("/run");
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(create)
        .truncate(false)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    Ok("written".into())
}

fn through_link(secret: &str) -> Got {
    let link = format!("/tmp/link-{}", std::process::id());
    std::os::unix::fs::symlink(secret, &link)?;
    fs::read_to_string(link)
}

/// The classic: a directory held open across a chroot leads above the new root.
fn through_chroot(secret: &str) -> Got {
    fs::create_dir_all("/tmp/jail").ok();
    let above = fs::File::open("/")?;
    std::os::unix::fs::chroot("/tmp/jail")?;
    rustix::process::fchdir(&above)?;
    for _ in 0..64 {
        std::env::set_current_dir("..")?;
    }
    std::os::unix::fs::chroot(".")?;
    fs::read_to_string(secret)
}

/// Inode 2 is the root directory of an ext4.
fn by_handle() -> Got {
    let directory = fs::File::open("/usr/bin")?;
    let handle: [u32; 4] = [8, 1, 2, 0];
    let fd = std::os::fd::AsRawFd::as_raw_fd(&directory);
    call(
        libc::SYS_open_by_handle_at,
        [i64::from(fd), handle.as_ptr() as i64, 0, 0, 0],
    )
}

/// Descriptors besides the standard ones and the one that lists them.
fn descriptors(path: &str) -> Got {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        let number: i32 = entry.file_name().to_string_lossy().parse().unwrap();
        // The first process of these tests has its own sockets and pipes.
        let own = target.starts_with("socket:")
            || target.starts_with("pipe:")
            || target.starts_with("/proc/")
            || target == "/dev/null";
        if number > 2 && !own {
            found.push(target);
        }
    }
    if found.is_empty() {
        refused("there is none")
    } else {
        Ok(found.join(" "))
    }
}

fn join(path: &str) -> Got {
    let namespace = fs::File::open(path)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&namespace);
    call(libc::SYS_setns, [i64::from(fd), 0, 0, 0, 0])
}

fn give_away(uid: u32) -> Got {
    let path = format!("/tmp/given-{}", std::process::id());
    fs::File::create(&path)?;
    std::os::unix::fs::chown(&path, Some(uid), None).map(|()| "given".into())
}

/// Processes whose arguments hold a word, other than this one, which was told the word.
fn processes_like(word: &str) -> Got {
    for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        if pid != std::process::id() && arguments.contains(word) {
            return Ok(format!("{pid} {arguments}"));
        }
    }
    refused("no such process")
}

fn log() -> Got {
    let mut text = [0_u8; 256];
    call(libc::SYS_syslog, [3, text.as_mut_ptr() as i64, 256, 0, 0])
}

#[cfg(target_arch = "x86_64")]
fn x86_ports() -> Got {
    call(libc::SYS_iopl, [3, 0, 0, 0, 0]).or_else(|_| call(libc::SYS_ioperm, [0, 1, 1, 0, 0]))
}

#[cfg(not(target_arch = "x86_64"))]
fn x86_ports() -> Got {
    refused("there are none")
}

fn release_agent() -> Got {
    for hierarchy in fs::read_dir("/sys/fs/cgroup")?.filter_map(Result::ok) {
        let path = hierarchy.path().join("release_agent");
        if path.exists() {
            return write(&path.to_string_lossy(), "/tmp/x");
        }
    }
    refused("no hierarchy is to be seen")
}

fn node(kind: u32, major: u32, minor: u32) -> Got {
    let path = CString::new(format!("/tmp/node-{}", std::process::id()))?;
    let device = libc::makedev(major, minor);
    let made = call(
        libc::SYS_mknodat,
        [
            libc::AT_FDCWD as i64,
            path.as_ptr() as i64,
            i64::from(kind | 0o666),
            device as i64,
            0,
        ],
    )?;
    if (major, minor) == (0, 0) {
        return Ok(made);
    }
    content(path.to_str().map_err(io::Error::other)?)
}

/// A test has left a setuid copy of `id`, owned by root inside.
fn setuid_program() -> Got {
    // SAFETY: no arguments, no memory.
    if unsafe { libc::geteuid() } == 0 {
        return refused("already root inside");
    }
    let output = Command::new("/tmp/setuid-id").arg("-u").output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if said == "0" {
        Ok("root".into())
    } else {
        refused(&format!("still {said}"))
    }
}

fn become_root() -> Got {
    // SAFETY: no arguments, no memory.
    if unsafe { libc::geteuid() } == 0 {
        return refused("already root inside");
    }
    call(libc::SYS_setuid, [0, 0, 0, 0, 0])
}

/// Version 3 of the structure, this process; CAP_SYS_ADMIN is number 21.
fn raise_capability() -> Got {
    let header = [0x2008_0522_u32, 0];
    let sets = [1_u32 << 21, 1 << 21, 0, 0, 0, 0];
    call(
        libc::SYS_capset,
        [header.as_ptr() as i64, sets.as_ptr() as i64, 0, 0, 0],
    )
}

/// A test has left a copy of `cat` with all capabilities on it.
fn file_capability() -> Got {
    let output = Command::new("/tmp/capable-cat")
        .arg("/proc/self/status")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let bits = text
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .unwrap_or("0")
        .trim();
    let bits = u64::from_str_radix(bits, 16).unwrap();
    if bits >> 21 & 1 == 1 {
        Ok("CAP_SYS_ADMIN".into())
    } else {
        refused(&format!("has {bits:x}"))
    }
}

fn raise_limit() -> Got {
    let limit = [1_u64 << 30, 1 << 30];
    call(
        libc::SYS_prlimit64,
        [
            0,
            i64::from(libc::RLIMIT_NOFILE),
            limit.as_ptr() as i64,
            0,
            0,
        ],
    )
}

fn arming() -> Got {
    // SAFETY: no arguments, no memory.
    if unsafe { libc::geteuid() } == 0 {
        return refused("root's own");
    }
    fs::read_to_string("/run/dormouse/arming.json")
}

fn connect(address: &str) -> Got {
    let address = address.parse().map_err(io::Error::other)?;
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(|_| "connected".into())
}

/// The host's end of the link, by the address it would have made up.
fn by_version_6(port: &str) -> Got {
    let link = std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), number(port) as u16, 0, 2);
    TcpStream::connect_timeout(&link.into(), Duration::from_secs(2)).map(|_| "connected".into())
}

/// Sends, and hears whether anybody answers; nobody does where it does not arrive.
fn datagram(from: &str, to: &str) -> Got {
    let socket = std::net::UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    socket.connect(to)?;
    socket.send(b"hello")?;
    let mut answer = [0; 16];
    socket.recv(&mut answer).map(|_| "answered".into())
}

fn abstract_socket(name: &str) -> Got {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    UnixStream::connect_addr(&address).map(|_| "connected".into())
}

fn socket(family: i32, kind: i32, protocol: i32) -> Got {
    call(
        libc::SYS_socket,
        [family.into(), kind.into(), protocol.into(), 0, 0],
    )
}

/// A request to netfilter: its answer is about the right to ask, whatever was asked.
fn firewall() -> Got {
    // SAFETY: only numbers are passed; the descriptor is nobody else's.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        <std::net::UdpSocket as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    // Length 20, a batch begins, request and acknowledge; then family, version and table.
    let mut request = [0_u8; 20];
    request[0] = 20;
    request[4] = 0x10;
    request[6] = 5;
    rustix::net::send(&socket, &request, rustix::net::SendFlags::empty())?;
    let mut answer = [0_u8; 256];
    let length = socket.recv(&mut answer)?;
    let error = answer.get(16..20).filter(|_| length >= 20).unwrap();
    match i32::from_le_bytes(error.try_into().unwrap()) {
        0 => Ok("accepted".into()),
        error if -error == libc::EPERM => Err(io::Error::from_raw_os_error(-error)),
        error => Ok(format!("heard: {error}")),
    }
}

fn run_program(path: &str, args: &[&str]) -> Got {
    if !Path::new(path).exists() {
        return refused("the host has no such program");
    }
    let output = Command::new(path)
        .args(args)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        Ok("done".into())
    } else {
        refused(String::from_utf8_lossy(&output.stderr).trim())
    }
}

/// Children that wait, until there are no more to be had.
fn too_many_processes(allowed: i64) -> Got {
    let mut children = Vec::new();
    let stopped = loop {
        if children.len() as i64 > allowed {
            break Ok(format!("{} processes", children.len()));
        }
        match Command::new("/bin/sleep").arg("30").spawn() {
            Ok(child) => children.push(child),
            Err(error) => break Err(error),
        }
    };
    for mut child in children {
        child.kill().ok();
        child.wait().ok();
    }
    stopped
}

/// A child that touches four times as much.
fn too_much_memory(allowed_mib: i64) -> Got {
    let script = format!("x = bytearray({} << 20); print(len(x))", allowed_mib * 4);
    let program = if Path::new("/usr/bin/python3").exists() {
        "/usr/bin/python3"
    } else {
        "/usr/bin/perl"
    };
    let script = if program.ends_with("perl") {
        format!("$x = 'x' x ({} << 20); print length $x", allowed_mib * 4)
    } else {
        script
    };
    let flag = if program.ends_with("perl") {
        "-e"
    } else {
        "-c"
    };
    let output = Command::new(program).args([flag, &script]).output()?;
    if output.status.success() {
        Ok("it had the memory".into())
    } else {
        refused(&output.status.to_string())
    }
}

fn too_many_files() -> Got {
    let mut files = Vec::new();
    while files.len() < 20_000 {
        files.push(fs::File::open("/dev/null")?);
    }
    Ok(format!("{} files", files.len()))
}

fn fill(path: &str, mib: usize) -> Got {
    let written = (|| {
        let mut file = fs::File::create(path)?;
        for _ in 0..mib {
            file.write_all(&vec![1; 1 << 20])?;
        }
        Ok(format!("{mib} MiB"))
    })();
    fs::remove_file(path).ok();
    written
}
