use proptest::prelude::*;

use super::*;

fn block() -> Block {
    "100.87.0.0/16".parse().unwrap()
}

fn policy(internet: Option<bool>, allow: &[&str], deny: &[&str]) -> Result<Policy, PolicyError> {
    let boxed = |list: &[&str]| list.iter().map(|e| (*e).into()).collect();
    let policy = NetworkPolicy {
        internet_access: internet,
        allow_out: boxed(allow),
        deny_out: boxed(deny),
        ..NetworkPolicy::default()
    };
    Policy::compile(&policy, block())
}

fn reaches(policy: &Policy, address: &str) -> bool {
    let address: Ipv4Addr = address.parse().unwrap();
    policy.ranges.contains(address) || (policy.open && !special(block()).contains(address))
}

const PRIVATE: [&str; 8] = [
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "192.0.0.192",
    "198.18.0.1",
];
const NOWHERE: [&str; 6] = [
    "0.0.0.0",
    "127.0.0.1",
    "100.87.0.1",
    "100.87.200.9",
    "224.0.0.1",
    "255.255.255.255",
];

#[test]
fn by_default_the_internet_is_open_and_nothing_else() {
    let policy = policy(None, &[], &[]).unwrap();
    assert!(policy.open && policy.ranges.is_empty() && !policy.names_only);
    for address in ["1.1.1.1", "203.0.113.5", "172.32.0.1", "11.0.0.0"] {
        assert!(reaches(&policy, address), "{address}");
    }
    for address in PRIVATE.iter().chain(&NOWHERE) {
        assert!(!reaches(&policy, address), "{address}");
    }
}

#[test]
fn without_internet_nothing_is_reached_and_no_name_answered() {
    for closed in [
        policy(Some(false), &[], &[]).unwrap(),
        policy(None, &[], &["0.0.0.0/0"]).unwrap(),
    ] {
        assert!(!closed.open && closed.ranges.is_empty());
        assert!(!closed.answers(&Name::read("example.com").unwrap()));
    }
}

#[test]
fn allow_wins_over_deny() {
    let policy = policy(None, &["9.9.9.9", "8.8.8.0/24"], &["8.0.0.0/7", "1.1.1.1"]).unwrap();
    for address in ["9.9.9.9", "8.8.8.200", "7.7.7.7"] {
        assert!(reaches(&policy, address), "{address}");
    }
    for address in ["8.8.9.1", "9.9.9.8", "1.1.1.1", "10.0.0.1"] {
        assert!(!reaches(&policy, address), "{address}");
    }
    assert!(policy.answers(&Name::read("any.org").unwrap()));
}

#[test]
fn special_addresses_are_reached_only_if_named() {
    for wide in ["0.0.0.0/0", "8.0.0.0/5", "128.0.0.0/1"] {
        let policy = policy(Some(false), &[wide], &[]).unwrap();
        for address in PRIVATE.iter().chain(&NOWHERE) {
            assert!(!reaches(&policy, address), "{wide} {address}");
        }
    }
    let policy = policy(Some(false), &["10.0.0.0/8", "169.254.169.254"], &[]).unwrap();
    assert!(reaches(&policy, "10.1.2.3") && reaches(&policy, "169.254.169.254"));
    assert!(!reaches(&policy, "169.254.169.253"));
}

#[test]
fn other_sandboxes_and_the_gateway_are_reached_by_no_policy() {
    let policy = policy(
        None,
        &[
            "100.64.0.0/10",
            "100.87.0.0/16",
            "100.87.0.7",
            "127.0.0.0/8",
            "224.0.0.0/4",
            "0.0.0.0/0",
        ],
        &[],
    )
    .unwrap();
    for address in NOWHERE {
        assert!(!reaches(&policy, address), "{address}");
    }
    assert!(reaches(&policy, "100.64.3.4"));
}

#[test]
fn everything_allowed_again_is_open() {
    let policy = policy(None, &["0.0.0.0/0"], &["0.0.0.0/0"]).unwrap();
    assert!(policy.open && policy.ranges.is_empty() && !policy.names_only);
}

#[test]
fn only_named_domains_are_answered_where_nothing_else_is_open() {
    let policy = policy(
        None,
        &["example.com", "*.pypi.org", "1.2.3.4"],
        &["0.0.0.0/0"],
    )
    .unwrap();
    let answers = |text| policy.answers(&Name::read(text).unwrap());
    assert!(answers("example.com") && answers("files.pypi.org"));
    assert!(!answers("pypi.org") && !answers("a.example.com") && !answers("org"));
}

#[test]
fn a_bad_entry_is_named() {
    let table: [(&[&str], &[&str], &str); 7] = [
        (&["1.1.1.1", "nonsense "], &[], "allowOut[1]"),
        (&["1.1.1.1/33"], &[], "allowOut[0]"),
        (&["1.1.1.1/"], &[], "allowOut[0]"),
        (&["1.1.1.1/+8"], &[], "allowOut[0]"),
        (&["2001:db8::1"], &[], "allowOut[0]"),
        (&[], &["example.com"], "denyOut[0]"),
        (&[], &["::/0", "1.2.3"], "denyOut[1]"),
    ];
    for (allow, deny, field) in table {
        let error = policy(None, allow, deny).unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    }
}

/// Entries around the edges of special blocks.
fn entry() -> impl Strategy<Value = (u32, u8)> {
    let near = prop::sample::select(vec![
        "9.255.255.0",
        "10.0.0.0",
        "10.255.255.255",
        "100.86.255.255",
        "100.87.0.0",
        "169.254.0.0",
        "203.0.113.0",
        "223.255.255.0",
        "0.0.0.0",
    ]);
    (near, 0_u8..=32).prop_map(|(text, bits)| {
        let address: Ipv4Addr = text.parse().unwrap();
        (address.to_bits(), bits)
    })
}

proptest! {
    /// The rules in one sentence each, address by address, against the compiled sets.
    #[test]
    fn compiled_policies_do_what_the_rules_say(
        internet in any::<Option<bool>>(),
        allow in prop::collection::vec(entry(), 0..4),
        deny in prop::collection::vec(entry(), 0..4),
        probes in prop::collection::vec((entry(), -2_i64..=2), 1..40),
    ) {
        let text = |(address, bits): &(u32, u8)| format!("{}/{bits}", Ipv4Addr::from_bits(*address));
        let lists = [&allow, &deny].map(|list| list.iter().map(text).collect::<Vec<_>>());
        let [allow_text, deny_text] = lists.each_ref().map(|l| l.iter().map(String::as_str).collect::<Vec<_>>());
        let compiled = policy(internet, &allow_text, &deny_text).unwrap();
        let range = |(address, bits): (u32, u8)| Range::block(Ipv4Addr::from_bits(address), bits);
        for ((address, bits), step) in probes {
            let last = range((address, bits)).last;
            let at = (i64::from(last) + step).clamp(0, i64::from(u32::MAX)) as u32;
            let one = Range { first: at, last: at };
            let never = NEVER.iter().chain([&block().range()]).any(|r| r.contains(one));
            let special = SPECIAL.iter().find(|r| r.contains(one));
            let denied = internet == Some(false) || deny.iter().any(|d| range(*d).contains(one));
            let allowed = allow.iter().any(|a| {
                let a = range(*a);
                a.contains(one) && special.is_none_or(|special| special.contains(a))
            });
            let expected = !never && (allowed || (special.is_none() && !denied));
            let text = Ipv4Addr::from_bits(at).to_string();
            prop_assert_eq!(reaches(&compiled, &text), expected, "{}", text);
        }
    }
}
