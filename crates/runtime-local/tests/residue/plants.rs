//! A hundred kinds of things that stay behind.

/// One kind.
pub(crate) struct Plant {
    pub(crate) name: &'static str,
    pub(crate) user: &'static str,
    /// The part of a look that shows it.
    pub(crate) part: &'static str,
    pub(crate) script: &'static str,
}

const fn root(part: &'static str, name: &'static str, script: &'static str) -> Plant {
    Plant {
        name,
        user: "root",
        part,
        script,
    }
}

const fn user(part: &'static str, name: &'static str, script: &'static str) -> Plant {
    Plant {
        name,
        user: "user",
        part,
        script,
    }
}

/// A program that makes a socket and stays.
macro_rules! listen {
    ($family:literal, $kind:literal, $address:literal, $then:literal) => {
        concat!(
            "python3 -c \"import socket,time; s=socket.socket(",
            $family,
            ",",
            $kind,
            "); s.bind(",
            $address,
            "); ",
            $then,
            "; time.sleep(1000)\" & disown"
        )
    };
}

pub(crate) const PLANTS: &[Plant] = &[
    // Processes.
    user("processes", "a process", "sleep 1000 & disown"),
    root("processes", "a process of root's", "sleep 1000 & disown"),
    user(
        "processes",
        "a daemon in a session of its own",
        "setsid -f sleep 1000",
    ),
    user(
        "processes",
        "a stopped process",
        "sleep 1000 & kill -STOP $!; disown",
    ),
    user(
        "processes",
        "a child that nobody waits for",
        "python3 -c 'import os,time\nif os.fork(): time.sleep(1000)' & disown",
    ),
    user(
        "processes",
        "a process with another name",
        "(exec -a kworker/0:1 sleep 1000) & disown",
    ),
    user(
        "processes",
        "a process that ignores signals",
        "(trap '' TERM HUP INT; sleep 1000) & disown",
    ),
    user(
        "processes",
        "a process that dies last",
        "sleep 1000 & echo 500 > /proc/$!/oom_score_adj; disown",
    ),
    user(
        "processes",
        "a process with low priority",
        "nice -n 19 sleep 1000 & disown",
    ),
    user(
        "processes",
        "a process with other limits",
        "(ulimit -n 77; exec sleep 1000) & disown",
    ),
    root(
        "processes",
        "a process with other groups",
        "setpriv --groups 7,77 sleep 1000 & disown",
    ),
    root(
        "processes",
        "a process of a user that does not exist",
        "setpriv --reuid 4242 --clear-groups sleep 1000 & disown",
    ),
    root(
        "processes",
        "a process without privileges",
        "setpriv --bounding-set=-all sleep 1000 & disown",
    ),
    user(
        "processes",
        "a process that gains no privileges",
        "setpriv --no-new-privs sleep 1000 & disown",
    ),
    root(
        "processes",
        "a process in a root of its own",
        "chroot / sleep 1000 & disown",
    ),
    user(
        "processes",
        "a process with a deleted file",
        "(exec 3>/tmp/deleted; rm /tmp/deleted; exec sleep 1000) & disown",
    ),
    user(
        "processes",
        "a process with a file in memory",
        "python3 -c 'import os,time; fd=os.memfd_create(\"x\"); os.write(fd,b\"secret\"); time.sleep(1000)' & disown",
    ),
    user(
        "processes",
        "a process in a deleted directory",
        "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; sleep 1000 & disown",
    ),
    user(
        "processes",
        "a busy process",
        "(while :; do :; done) & disown",
    ),
    user(
        "processes",
        "a process of many threads",
        "python3 -c 'import threading,time\nfor _ in range(20): threading.Thread(target=time.sleep,args=(1000,)).start()' & disown",
    ),
    user(
        "processes",
        "twenty processes",
        "for _ in $(seq 20); do sleep 1000 & done; disown -a",
    ),
    user(
        "processes",
        "a secret in an environment",
        "SECRET=1 sleep 1000 & disown",
    ),
    user(
        "processes",
        "a reader of a pipe with a name",
        "mkfifo /tmp/f; cat /tmp/f & disown",
    ),
    user(
        "processes",
        "a process that outlives a hangup",
        "nohup sleep 1000 & disown",
    ),
    user(
        "processes",
        "a process at a terminal",
        "python3 -c 'import pty; pty.spawn([\"sleep\",\"1000\"])' & disown",
    ),
    user("processes", "a lock", "flock /tmp/lock sleep 1000 & disown"),
    user(
        "processes",
        "a loop",
        "(while :; do sleep 0.2; done) & disown",
    ),
    user(
        "processes",
        "a watch on files",
        "python3 -c 'import ctypes,time; l=ctypes.CDLL(None); f=l.inotify_init(); l.inotify_add_watch(f,b\"/tmp\",0xfff); time.sleep(1000)' & disown",
    ),
    user(
        "processes",
        "a process that is traced",
        "python3 -c 'import ctypes,os,time\np=os.fork()\nif p==0:\n ctypes.CDLL(None).ptrace(0,0,0,0); time.sleep(1000)\ntime.sleep(1000)' & disown",
    ),
    user(
        "processes",
        "locked memory",
        "python3 -c 'import ctypes,mmap,time; m=mmap.mmap(-1,1<<20); ctypes.CDLL(None).mlockall(3); time.sleep(1000)' & disown",
    ),
    user(
        "processes",
        "a process with sudo's rights",
        "sudo -n sleep 1000 & disown; sleep 0.1",
    ),
    // Sockets.
    user(
        "sockets",
        "a TCP port",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('0.0.0.0',8080)",
            "s.listen()"
        ),
    ),
    user(
        "sockets",
        "a TCP port on loopback",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('127.0.0.1',8081)",
            "s.listen()"
        ),
    ),
    user(
        "sockets",
        "a TCP port of IPv6",
        listen!(
            "socket.AF_INET6",
            "socket.SOCK_STREAM",
            "('::',8082)",
            "s.listen()"
        ),
    ),
    root(
        "sockets",
        "port 80",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('0.0.0.0',80)",
            "s.listen()"
        ),
    ),
    user(
        "sockets",
        "a UDP port",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_DGRAM",
            "('0.0.0.0',5353)",
            "pass"
        ),
    ),
    user(
        "sockets",
        "a UDP port of IPv6",
        listen!(
            "socket.AF_INET6",
            "socket.SOCK_DGRAM",
            "('::',5354)",
            "pass"
        ),
    ),
    user(
        "sockets",
        "a connected UDP port",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_DGRAM",
            "('127.0.0.1',5355)",
            "s.connect(('127.0.0.1',1))"
        ),
    ),
    user(
        "sockets",
        "membership in a group",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_DGRAM",
            "('0.0.0.0',5356)",
            "s.setsockopt(0,35,socket.inet_aton('239.1.1.1')+socket.inet_aton('127.0.0.1'))"
        ),
    ),
    user(
        "sockets",
        "a listener at a path",
        listen!(
            "socket.AF_UNIX",
            "socket.SOCK_STREAM",
            "'/tmp/listener'",
            "s.listen()"
        ),
    ),
    user(
        "sockets",
        "a listener at an abstract name",
        listen!(
            "socket.AF_UNIX",
            "socket.SOCK_STREAM",
            "'\\0last-owner'",
            "s.listen()"
        ),
    ),
    user(
        "sockets",
        "a mailbox",
        listen!(
            "socket.AF_UNIX",
            "socket.SOCK_DGRAM",
            "'/tmp/mailbox'",
            "pass"
        ),
    ),
    user(
        "sockets",
        "packets in order",
        listen!(
            "socket.AF_UNIX",
            "socket.SOCK_SEQPACKET",
            "'\\0ordered'",
            "s.listen()"
        ),
    ),
    user(
        "sockets",
        "a pair of sockets",
        listen!(
            "socket.AF_UNIX",
            "socket.SOCK_STREAM",
            "'\\0pair'",
            "a,b=socket.socketpair()"
        ),
    ),
    user(
        "sockets",
        "a descriptor on its way",
        listen!(
            "socket.AF_UNIX",
            "socket.SOCK_STREAM",
            "'\\0passing'",
            "a,b=socket.socketpair(); socket.send_fds(a,[b'x'],[0]); a.close()"
        ),
    ),
    user(
        "sockets",
        "an open connection",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('127.0.0.1',8083)",
            "s.listen(); c=socket.create_connection(('127.0.0.1',8083)); d=s.accept()"
        ),
    ),
    user(
        "sockets",
        "a connection that was half closed",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('127.0.0.1',8084)",
            "s.listen(); c=socket.create_connection(('127.0.0.1',8084)); d=s.accept(); c.shutdown(1)"
        ),
    ),
    user(
        "sockets",
        "a connection that waits for its end",
        "python3 -c 'import socket; s=socket.socket(); s.bind((\"127.0.0.1\",8085)); s.listen(); c=socket.create_connection((\"127.0.0.1\",8085)); d,_=s.accept(); c.close(); d.close()'",
    ),
    user(
        "sockets",
        "bytes that nobody reads",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('127.0.0.1',8086)",
            "s.listen(); c=socket.create_connection(('127.0.0.1',8086)); c.send(b'secret')"
        ),
    ),
    user(
        "sockets",
        "a shared port",
        listen!(
            "socket.AF_INET",
            "socket.SOCK_STREAM",
            "('0.0.0.0',8087)",
            "s.listen(); t=socket.socket()"
        ),
    ),
    user(
        "sockets",
        "a socket to the kernel",
        listen!("socket.AF_NETLINK", "socket.SOCK_RAW", "(0,0)", "pass"),
    ),
    user(
        "network",
        "a neighbour",
        "exec 3<>/dev/udp/192.0.2.1/9; echo >&3; sleep 0.05; true",
    ),
    // Queues and shared memory.
    user("ipc", "shared memory", "ipcmk -M 4096"),
    user("ipc", "semaphores", "ipcmk -S 2"),
    user("ipc", "a queue", "ipcmk -Q"),
    root("ipc", "shared memory of root's", "ipcmk -M 4096"),
    user(
        "files",
        "shared memory with a name",
        "echo secret > /dev/shm/secret",
    ),
    user(
        "files",
        "a semaphore with a name",
        "head -c 32 /dev/zero > /dev/shm/sem.last",
    ),
    // Files.
    user("files", "a file at home", "echo secret > ~/secret"),
    root("files", "a file of root's", "echo secret > /root/secret"),
    user("files", "a temporary file", "echo secret > /tmp/secret"),
    user(
        "files",
        "a temporary file that is kept",
        "echo secret > /var/tmp/secret",
    ),
    root("files", "a file in /run", "echo secret > /run/secret"),
    root("files", "a file in /etc", "echo secret > /etc/secret"),
    root(
        "files",
        "a file in /var",
        "mkdir -p /var/lib/x; echo secret > /var/lib/x/secret",
    ),
    root(
        "files",
        "a file in /opt",
        "mkdir -p /opt; echo secret > /opt/secret",
    ),
    root(
        "files",
        "a program before all others",
        "mkdir -p /usr/local/bin; cp /bin/true /usr/local/bin/ls",
    ),
    root("files", "a changed file", "echo '# last' >> /etc/passwd"),
    root("files", "a deleted file", "rm /etc/passwd"),
    root("files", "a deleted directory", "rm -r /home/user"),
    root(
        "files",
        "a directory in place of another",
        "rm -r /home/user; mkdir /home/user; touch /home/user/x",
    ),
    root(
        "files",
        "a file in place of a directory",
        "rm -r /home/user; echo > /home/user",
    ),
    root("files", "other modes", "chmod 777 /etc"),
    root("files", "another owner", "chown 7:77 /etc"),
    root("files", "modes of /tmp", "chmod 700 /tmp"),
    user(
        "files",
        "an attribute",
        "touch ~/x; setfattr -n user.last -v owner ~/x || python3 -c 'import os; os.setxattr(\"/home/user/x\",\"user.last\",b\"owner\")'",
    ),
    user(
        "files",
        "a list of who may",
        "touch ~/x; python3 -c 'import os,struct; os.setxattr(\"/home/user/x\",\"system.posix_acl_access\",struct.pack(\"<I\",2)+b\"\".join(struct.pack(\"<HHI\",t,p,i) for t,p,i in [(1,6,4294967295),(2,4,7),(4,4,4294967295),(16,4,4294967295),(32,0,4294967295)]))'",
    ),
    root(
        "files",
        "a privileged file",
        "cp /bin/true /tmp/t; python3 -c 'import os,struct; os.setxattr(\"/tmp/t\",\"security.capability\",struct.pack(\"<IIIII\",0x02000001,1<<10,0,0,0))'",
    ),
    root(
        "files",
        "a program that becomes root",
        "cp /bin/true /tmp/t; chmod 4755 /tmp/t",
    ),
    root(
        "files",
        "a directory that gives its group",
        "mkdir /var/tmp/g; chmod 2777 /var/tmp/g",
    ),
    user("files", "a link", "ln -s /etc/shadow ~/link"),
    user("files", "a link to nothing", "ln -s /nowhere /tmp/link"),
    user(
        "files",
        "a link that goes up",
        "ln -s ../../../../../../etc /tmp/up",
    ),
    user("files", "a hard link", "echo x > ~/a; ln ~/a ~/b"),
    user("files", "a pipe with a name", "mkfifo ~/pipe"),
    user(
        "files",
        "the file of a socket",
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/s\")'",
    ),
    user("files", "a sparse file", "truncate -s 1G ~/sparse"),
    user("files", "an empty directory", "mkdir ~/empty"),
    user("files", "a hidden file", "echo x > ~/.hidden"),
    user("files", "a name of two lines", "touch ~/$'a\\nb'"),
    user("files", "a name that is no text", "touch ~/$'\\xff\\xfe'"),
    user(
        "files",
        "a long name",
        "touch ~/$(head -c 255 /dev/zero | tr '\\0' a)",
    ),
    user(
        "files",
        "deep directories",
        "cd; for _ in $(seq 60); do mkdir d; cd d; done",
    ),
    user(
        "files",
        "a thousand files",
        "mkdir ~/m; cd ~/m; touch $(seq 1000)",
    ),
    user("files", "large files", "head -c 20M /dev/urandom > ~/large"),
    root(
        "files",
        "files of nobody's",
        "touch /var/tmp/n; chown 4242:4242 /var/tmp/n",
    ),
    user("files", "a changed time", "touch -d 2001-01-01 ~/.profile"),
    user(
        "files",
        "what a shell starts with",
        "echo 'curl evil' >> ~/.bashrc",
    ),
    root(
        "files",
        "what every shell starts with",
        "mkdir -p /etc/profile.d; echo x > /etc/profile.d/x.sh",
    ),
    user(
        "files",
        "what was typed",
        "echo 'export TOKEN=1' > ~/.bash_history",
    ),
    user(
        "files",
        "who may log in",
        "mkdir -m 700 ~/.ssh; echo key > ~/.ssh/authorized_keys",
    ),
    user(
        "files",
        "a key",
        "mkdir -m 700 ~/.ssh; echo key > ~/.ssh/id_ed25519",
    ),
    root(
        "files",
        "who may become root",
        "mkdir -p /etc/sudoers.d; echo 'nobody ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/x",
    ),
    root(
        "files",
        "another user",
        "echo 'eve:x:0:0::/:/bin/sh' >> /etc/passwd",
    ),
    root(
        "files",
        "another group",
        "echo 'eve:x:7777:user' >> /etc/group",
    ),
    root(
        "files",
        "a password",
        "echo 'root:x:1:0:99999:7:::' > /etc/shadow",
    ),
    root(
        "files",
        "what every program loads",
        "echo /tmp/evil.so > /etc/ld.so.preload",
    ),
    root(
        "files",
        "names of hosts",
        "rm -f /etc/hosts; echo '192.0.2.1 pypi.org' > /etc/hosts",
    ),
    root(
        "files",
        "trusted authorities",
        "mkdir -p /usr/local/share/ca-certificates; echo x > /usr/local/share/ca-certificates/x.crt",
    ),
    root(
        "files",
        "a table of what runs when",
        "mkdir -p /var/spool/cron/crontabs; echo '* * * * * x' > /var/spool/cron/crontabs/root",
    ),
    root(
        "files",
        "a service",
        "mkdir -p /etc/systemd/system; echo x > /etc/systemd/system/x.service",
    ),
    root(
        "files",
        "another time zone",
        "ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime",
    ),
    root(
        "files",
        "an environment for everybody",
        "echo TOKEN=1 > /etc/environment",
    ),
    user(
        "files",
        "a token for git",
        "echo 'https://x:token@example.com' > ~/.git-credentials",
    ),
    user(
        "files",
        "a package of Python's",
        "mkdir -p ~/.local/lib/python3/site-packages; echo x > ~/.local/lib/python3/site-packages/usercustomize.py",
    ),
    user(
        "files",
        "settings of npm",
        "echo '//registry/:_authToken=x' > ~/.npmrc",
    ),
    user(
        "files",
        "a cache",
        "mkdir -p ~/.cache/pip; echo x > ~/.cache/pip/x",
    ),
];
