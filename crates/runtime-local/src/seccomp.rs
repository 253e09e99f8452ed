//! Which system calls a sandbox may make. Compiled once, loaded by each first process.
//!
//! Known calls go through; what is known and not for a sandbox fails with `EPERM`; all others fail
//! with `ENOSYS`, so that programs fall back as on an older kernel.

mod calls;
mod profile;
mod program;

use std::collections::BTreeMap;

use libc::sock_filter;

use calls::{ALLOWED, Call, DENIED, NAMESPACES, call};
use program::{Rule, Test, compile};

/// `AUDIT_ARCH_*` of what this was built for.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

const REFUSED: Rule = Rule::Refuse(libc::EPERM);
const UNKNOWN: Rule = Rule::Refuse(libc::ENOSYS);

/// The compiled filter.
pub(crate) struct Filter(Vec<sock_filter>);

impl Filter {
    /// Compiles the filter.
    pub(crate) fn new() -> Self {
        Self(compile(ARCHITECTURE, &rules(), &UNKNOWN))
    }

    /// The same as a document, for runtimes that compile their own.
    pub(crate) fn profile() -> serde_json::Value {
        profile::write(&all_rules())
    }

    pub(crate) fn program(&self) -> &[sock_filter] {
        &self.0
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filter({} instructions)", self.0.len())
    }
}

fn rules() -> BTreeMap<u32, Rule> {
    let numbered = |(call, rule): (Call, Rule)| Some((u32::try_from(call.1).ok()?, rule));
    all_rules().into_iter().filter_map(numbered).collect()
}

/// The rule of every call that has one. A call has one rule only.
fn all_rules() -> Vec<(Call, Rule)> {
    let mut rules = Vec::new();
    let mut set = |call: Call, rule: Rule| rules.push((call, rule));
    for call in ALLOWED {
        set(*call, Rule::Allow);
    }
    #[cfg(target_arch = "x86_64")]
    for call in calls::ALLOWED_X86_64 {
        set(*call, Rule::Allow);
    }
    for call in DENIED {
        set(*call, REFUSED);
    }
    // Families that a network namespace confines. AF_VSOCK reaches the hypervisor of the host
    // and AF_ALG is a door into the kernel that hardly anybody needs.
    let families = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
    ];
    set(
        call!(SYS_socket),
        only(0, families.map(i32::unsigned_abs).into()),
    );
    let personalities = vec![0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
    set(call!(SYS_personality), only(0, personalities));
    for call in [call!(SYS_clone), call!(SYS_unshare)] {
        set(call, all_but(0, Test::Has, NAMESPACES.into()));
    }
    // Typing into a terminal on somebody else's behalf.
    let terminals = [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD];
    let terminals = terminals.map(|request| request as u32);
    set(call!(SYS_ioctl), all_but(1, Test::Is, terminals.into()));
    rules
}

/// Allowed with these values of an argument, else as if it did not exist.
fn only(argument: u32, values: Vec<u32>) -> Rule {
    Rule::Ask {
        argument,
        test: Test::Is,
        values,
        then: Box::new(Rule::Allow),
        otherwise: Box::new(UNKNOWN),
    }
}

/// Refused with these values of an argument.
fn all_but(argument: u32, test: Test, values: Vec<u32>) -> Rule {
    Rule::Ask {
        argument,
        test,
        values,
        then: Box::new(REFUSED),
        otherwise: Box::new(Rule::Allow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS};

    const EPERM: u32 = SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const ENOSYS: u32 = SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

    fn ask(number: i64, arguments: [u32; 6]) -> u32 {
        let number = u32::try_from(number).unwrap();
        program::interpret(Filter::new().program(), ARCHITECTURE, number, arguments).0
    }

    #[test]
    fn every_call_gets_the_answer_of_its_list() {
        let rules = rules();
        let filter = Filter::new();
        for number in (0..2000).chain([0x4000_0000, 0x4000_0027, u32::MAX]) {
            let (said, steps) = program::interpret(filter.program(), ARCHITECTURE, number, [0; 6]);
            let expected = match rules.get(&number) {
                None | Some(Rule::Refuse(libc::ENOSYS)) => ENOSYS,
                Some(Rule::Refuse(_)) => EPERM,
                Some(Rule::Allow) => SECCOMP_RET_ALLOW,
                // Asked about below.
                Some(Rule::Ask { .. }) => continue,
            };
            assert_eq!(said, expected, "{number}");
            assert!(steps < 24, "{number} takes {steps} steps");
        }
        assert!(filter.program().len() < 4096, "{filter:?}");
    }

    #[test]
    fn arguments_decide_where_they_matter() {
        let first = |value: i32| [value as u32, 0, 0, 0, 0, 0];
        assert_eq!(
            ask(libc::SYS_socket, first(libc::AF_INET6)),
            SECCOMP_RET_ALLOW
        );
        assert_eq!(ask(libc::SYS_socket, first(libc::AF_VSOCK)), ENOSYS);
        let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
        assert_eq!(ask(libc::SYS_clone, first(thread)), SECCOMP_RET_ALLOW);
        for flag in NAMESPACES {
            let with = [flag | libc::SIGCHLD as u32, 0, 0, 0, 0, 0];
            assert_eq!(ask(libc::SYS_clone, with), EPERM);
            assert_eq!(ask(libc::SYS_unshare, with), EPERM);
        }
        let request = |value: u64| [0, value as u32, 0, 0, 0, 0];
        assert_eq!(ask(libc::SYS_ioctl, request(libc::TIOCSTI)), EPERM);
        assert_eq!(
            ask(libc::SYS_ioctl, request(libc::TIOCGWINSZ)),
            SECCOMP_RET_ALLOW
        );
        assert_eq!(ask(libc::SYS_personality, first(0x8)), SECCOMP_RET_ALLOW);
        assert_eq!(ask(libc::SYS_personality, first(0x10)), ENOSYS);
    }

    #[test]
    fn a_call_of_another_architecture_ends_the_process() {
        let filter = Filter::new();
        let (said, _) = program::interpret(filter.program(), 0x4000_0003, 20, [0; 6]);
        assert_eq!(said, SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn nothing_is_both_allowed_and_denied() {
        let mut calls: Vec<_> = all_rules().into_iter().map(|(call, _)| call).collect();
        let all = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert_eq!(calls.len(), all);
    }
}
