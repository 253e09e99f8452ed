//! From rules to a program of the kernel's packet filter.
//!
//! The kernel runs a filter once for every number of a system call when it is loaded, to know which
//! ones need no filter at all. Asking for one number after the other makes that a hundred thousand
//! steps, and a start a millisecond longer; a search tree needs eight questions for any number.

use std::collections::BTreeMap;

use libc::{
    BPF_ABS, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, sock_filter,
};

/// What happens to a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Allow,
    /// Fails with this error.
    Refuse(i32),
    /// Depends on the lower half of an argument.
    Ask {
        argument: u32,
        test: Test,
        values: Vec<u32>,
        /// If any of the values fits.
        then: Box<Self>,
        otherwise: Box<Self>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The argument is the value.
    Is,
    /// The argument has a bit of the value.
    Has,
}

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// A program for one architecture: a call of any other ends the process.
pub(super) fn compile(
    architecture: u32,
    rules: &BTreeMap<u32, Rule>,
    unknown: &Rule,
) -> Vec<sock_filter> {
    let mut program = vec![
        statement(BPF_LD | BPF_W | BPF_ABS, ARCHITECTURE),
        jump(BPF_JEQ, architecture, 1, 0),
        statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        statement(BPF_LD | BPF_W | BPF_ABS, NUMBER),
    ];
    program.extend(tree(&spans(rules, unknown)));
    program
}

/// Neighbours that share a rule are one span: where it begins, and its rule.
fn spans<'a>(rules: &'a BTreeMap<u32, Rule>, unknown: &'a Rule) -> Vec<(u32, &'a Rule)> {
    let mut spans: Vec<(u32, &Rule)> = Vec::new();
    let mut add = |from: u32, rule: &'a Rule| {
        if spans.last().is_none_or(|(_, last)| *last != rule) {
            spans.push((from, rule));
        }
    };
    let mut next = 0;
    for (number, rule) in rules {
        if *number > next {
            add(next, unknown);
        }
        add(*number, rule);
        next = *number + 1;
    }
    add(next, unknown);
    spans
}

fn tree(spans: &[(u32, &Rule)]) -> Vec<sock_filter> {
    match spans {
        [] => Vec::new(),
        [(_, rule)] => leaf(rule),
        _ => {
            let (below, above) = spans.split_at(spans.len() / 2);
            let (first, below, above) = (above[0].0, tree(below), tree(above));
            let over = u32::try_from(below.len()).unwrap_or(u32::MAX);
            let mut program = match u8::try_from(over) {
                Ok(over) => vec![jump(BPF_JGE, first, over, 0)],
                // Farther than a question can jump.
                Err(_) => vec![
                    jump(BPF_JGE, first, 0, 1),
                    statement(BPF_JMP | BPF_JA, over),
                ],
            };
            program.extend(below);
            program.extend(above);
            program
        }
    }
}

fn leaf(rule: &Rule) -> Vec<sock_filter> {
    match rule {
        Rule::Allow => vec![statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)],
        Rule::Refuse(errno) => {
            let errno = errno.unsigned_abs() & libc::SECCOMP_RET_DATA;
            vec![statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | errno)]
        }
        Rule::Ask {
            argument,
            test,
            values,
            then,
            otherwise,
        } => {
            let test = match test {
                Test::Is => BPF_JEQ,
                Test::Has => BPF_JSET,
            };
            let (then, otherwise) = (leaf(then), leaf(otherwise));
            let at = ARGUMENTS + 8 * argument;
            let mut program = vec![statement(BPF_LD | BPF_W | BPF_ABS, at)];
            for (index, value) in values.iter().enumerate() {
                // A handful of values and two answers: never as far as 255.
                let over = values.len() - 1 - index + otherwise.len();
                program.push(jump(test, *value, u8::try_from(over).unwrap_or(u8::MAX), 0));
            }
            program.extend(otherwise);
            program.extend(then);
            program
        }
    }
}

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

const fn jump(test: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | test | BPF_K) as u16,
        jt,
        jf,
        k,
    }
}

/// What a program answers, and after how many steps: as the kernel reads it.
#[cfg(test)]
pub(super) fn interpret(
    program: &[sock_filter],
    architecture: u32,
    number: u32,
    arguments: [u32; 6],
) -> (u32, usize) {
    let (mut at, mut loaded) = (0, 0);
    for step in 1.. {
        let instruction = program[at];
        let (code, k) = (u32::from(instruction.code), instruction.k);
        at += 1;
        let mut decide = |yes: bool| {
            at += usize::from(if yes { instruction.jt } else { instruction.jf });
        };
        if code == BPF_LD | BPF_W | BPF_ABS {
            loaded = match k {
                NUMBER => number,
                ARCHITECTURE => architecture,
                other => arguments[(other - ARGUMENTS) as usize / 8],
            };
        } else if code == BPF_JMP | BPF_JEQ {
            decide(loaded == k);
        } else if code == BPF_JMP | BPF_JGE {
            decide(loaded >= k);
        } else if code == BPF_JMP | BPF_JSET {
            decide(loaded & k != 0);
        } else if code == BPF_JMP | BPF_JA {
            at += k as usize;
        } else if code == BPF_RET | BPF_K {
            return (k, step);
        } else {
            panic!("{code:#x}");
        }
    }
    unreachable!("a program only goes forward")
}
