//! From rules to a `seccomp` object of an OCI runtime's configuration.
//!
//! What a runtime's library makes of it has one answer for a call, whichever of its rules is read
//! first, so rules of one call never overlap unless they say the same.

use serde_json::{Value, json};

use super::{
    calls::Call,
    program::{Rule, Test},
};

/// Architectures by the name of the runtime specification.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// What is not named fails as if it did not exist.
pub(super) fn write(rules: &[(Call, Rule)]) -> Value {
    let mut syscalls = Vec::new();
    for ((name, _), rule) in rules {
        let name = name.trim_start_matches("SYS_");
        match rule {
            Rule::Ask {
                argument,
                test,
                values,
                then,
                otherwise,
            } => {
                let (with, without) = patterns(*test, values);
                for (patterns, rule) in [(with, then), (without, otherwise)] {
                    let entries = patterns.iter().map(|pattern| {
                        let condition = json!([{
                            "index": argument,
                            "op": "SCMP_CMP_MASKED_EQ",
                            "value": pattern.mask,
                            "valueTwo": pattern.value,
                        }]);
                        entry(name, rule, Some(condition))
                    });
                    syscalls.extend(entries.flatten());
                }
            }
            other => syscalls.extend(entry(name, other, None)),
        }
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::ENOSYS,
        "architectures": [ARCHITECTURE],
        "syscalls": syscalls,
    })
}

fn entry(name: &str, rule: &Rule, condition: Option<Value>) -> Option<Value> {
    let mut entry = match rule {
        Rule::Allow => json!({ "names": [name], "action": "SCMP_ACT_ALLOW" }),
        // The default already.
        Rule::Refuse(libc::ENOSYS) => return None,
        Rule::Refuse(errno) => json!({
            "names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": errno,
        }),
        // Rules ask once.
        Rule::Ask { .. } => return None,
    };
    if let Some(condition) = condition {
        entry["args"] = condition;
    }
    Some(entry)
}

/// An argument whose bits of the mask are the value's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pattern {
    mask: u32,
    value: u32,
}

/// Patterns that together fit what a test finds, and those that fit all else.
fn patterns(test: Test, values: &[u32]) -> (Vec<Pattern>, Vec<Pattern>) {
    match test {
        Test::Has => {
            let has = |bits: &u32| Pattern {
                mask: *bits,
                value: *bits,
            };
            let none = Pattern {
                mask: values.iter().fold(0, |all, bits| all | bits),
                value: 0,
            };
            (values.iter().map(has).collect(), vec![none])
        }
        Test::Is => {
            let is = |value: &u32| Pattern {
                mask: u32::MAX,
                value: *value,
            };
            let mut others = Vec::new();
            outside(values, 32, 0, &mut others);
            (values.iter().map(is).collect(), others)
        }
    }
}

/// Patterns for every number but these, which share all bits from `bits` upwards with `value`.
fn outside(values: &[u32], bits: u32, value: u32, found: &mut Vec<Pattern>) {
    if values.is_empty() {
        let mask = u32::MAX.checked_shl(bits).unwrap_or(0);
        found.push(Pattern { mask, value });
        return;
    }
    if bits == 0 {
        return;
    }
    let bit = 1 << (bits - 1);
    for half in [0, bit] {
        let in_half: Vec<_> = values.iter().copied().filter(|v| v & bit == half).collect();
        outside(&in_half, bits - 1, value | half, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_fits_one_side_only() {
        let fits = |all: &[Pattern], number: u32| all.iter().any(|p| number & p.mask == p.value);
        let values = [0x5412, 0x541c, 0x5423];
        let (is, other) = patterns(Test::Is, &values);
        let (has, none) = patterns(Test::Has, &[0x80, 0x1_0000]);
        let near = (0..0x2_0100).chain((0..32).map(|bit| 0x5412 ^ (1 << bit)));
        for number in near.chain([u32::MAX]) {
            assert_eq!(fits(&is, number), values.contains(&number), "{number:#x}");
            assert_ne!(fits(&is, number), fits(&other, number), "{number:#x}");
            assert_eq!(fits(&has, number), number & 0x1_0080 != 0, "{number:#x}");
            assert_ne!(fits(&has, number), fits(&none, number), "{number:#x}");
        }
        assert!(other.len() < 64, "{}", other.len());
    }
}
