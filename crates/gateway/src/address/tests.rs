use proptest::prelude::*;

use super::*;

fn ask<'a>(host: &'a str, id: Option<&'a str>, port: Option<&'a str>, path: &'a str) -> Asked<'a> {
    let field = |text: Option<&'a str>| text.map_or(Field::Absent, |t| Field::One(t.as_bytes()));
    Asked {
        host: Field::One(host.as_bytes()),
        id: field(id),
        port: field(port),
        path,
    }
}

fn sandbox(id: &str, port: u16, prefix: usize) -> Target<'_> {
    Target::Sandbox {
        id: id.into(),
        port: Port(port.try_into().unwrap()),
        prefix,
    }
}

#[test]
fn hosts_headers_and_paths_lead_to_the_same_sandbox() {
    let own = Hosts::new(Some("sbx.test:8443"));
    let none = Hosts::default();
    for hosts in [&own, &none] {
        for host in [
            "8080-abc1.sbx.test",
            "8080-ABC1.SBX.test.:8443",
            "8080-abc1-c7.sbx.test",
        ] {
            assert_eq!(
                hosts.parse(ask(host, None, None, "/-/x/1/")),
                Ok(sandbox("abc1", 8080, 0)),
                "{host}"
            );
        }
        for host in [
            "localhost",
            "localhost:3000",
            "10.0.0.7:1",
            "[::1]:80",
            "[::1]",
            "sandbox.sbx.test",
            "dormouse",
            "box_1:80",
        ] {
            let by_headers = ask(host, Some("abc1-c7"), Some("8080"), "/-/x/1/");
            assert_eq!(
                hosts.parse(by_headers),
                Ok(sandbox("abc1", 8080, 0)),
                "{host}"
            );
            let by_path = ask(host, None, None, "/-/abc1/8080/a/b");
            assert_eq!(
                hosts.parse(by_path),
                Ok(sandbox("abc1", 8080, 12)),
                "{host}"
            );
            let bare = ask(host, None, None, "/-/abc1/8080");
            assert_eq!(hosts.parse(bare), Ok(sandbox("abc1", 8080, 12)), "{host}");
            assert_eq!(
                hosts.parse(ask(host, None, None, "/v2/sandboxes")),
                Ok(Target::Unaddressed),
                "{host}"
            );
        }
        assert_eq!(
            hosts.parse(ask("api.sbx.test", Some("a"), None, "/-/")),
            Ok(Target::Api)
        );
    }
}

#[test]
fn a_host_that_is_an_address_does_not_listen_to_headers() {
    let hosts = Hosts::new(Some("sbx.test"));
    let asked = ask("80-abc.sbx.test", Some("other"), Some("81"), "/");
    assert_eq!(hosts.parse(asked), Ok(sandbox("abc", 80, 0)));
}

#[test]
fn one_header_without_the_other_or_twice_is_refused() {
    let hosts = Hosts::default();
    for (id, port) in [(Some("abc"), None), (None, Some("80"))] {
        assert_eq!(
            hosts.parse(ask("localhost", id, port, "/")),
            Err(AddressError::Headers)
        );
    }
    let twice = Asked {
        id: Field::Many,
        ..ask("localhost", None, Some("80"), "/")
    };
    assert_eq!(hosts.parse(twice), Err(AddressError::Headers));
    for host in [Field::Absent, Field::Many] {
        let asked = Asked {
            host,
            ..ask("", None, None, "/")
        };
        assert_eq!(hosts.parse(asked), Err(AddressError::Host));
    }
}

#[test]
fn a_port_has_one_spelling() {
    let hosts = Hosts::default();
    for port in [
        "02280",
        "+80",
        "0",
        "65536",
        "99999",
        "100000",
        "",
        " 80",
        "80 ",
        "8_0",
        "0x50",
        "８０",
        "-1",
        "4294967376",
        "1e2",
    ] {
        assert_eq!(
            hosts.parse(ask("localhost", Some("abc"), Some(port), "/")),
            Err(AddressError::Port),
            "{port}"
        );
        let path = format!("/-/abc/{port}/");
        assert_eq!(
            hosts.parse(ask("localhost", None, None, &path)),
            Err(AddressError::Port),
            "{port}"
        );
        let host = format!("{port}-abc.sbx.test");
        assert!(
            Hosts::new(Some("sbx.test"))
                .parse(ask(&host, None, None, "/"))
                .is_err(),
            "{host}"
        );
    }
    for host in [
        "02280-abc.sbx.test",
        "0-abc.sbx.test",
        "8_0-abc.sbx.test",
        "+80-abc.sbx.test",
    ] {
        assert!(hosts.parse(ask(host, None, None, "/")).is_err(), "{host}");
    }
}

#[test]
fn ids_and_labels_that_cannot_be_are_refused() {
    let hosts = Hosts::new(Some("sbx.test"));
    let long = "a".repeat(58);
    for id in ["", "ABC", "a_b", "a.b", "-abc", "é", &long] {
        assert_eq!(
            hosts.parse(ask("localhost", Some(id), Some("80"), "/")),
            Err(AddressError::Id),
            "{id}"
        );
    }
    for host in [
        "www.sbx.test",
        "abc.sbx.test",
        "x.80-abc.sbx.test",
        "80.sbx.test",
        "-.sbx.test",
    ] {
        assert!(hosts.parse(ask(host, None, None, "/")).is_err(), "{host}");
    }
    for host in [
        "",
        ".",
        "a b",
        "a@b",
        "80-abc@evil.test",
        "[::1",
        "[::1]x",
        "a:b",
        "a:80:80",
        "%61",
        "a/b",
        &"a".repeat(254),
    ] {
        assert_eq!(
            hosts.parse(ask(host, None, None, "/")),
            Err(AddressError::Host),
            "{host}"
        );
    }
    assert_eq!(
        hosts.parse(ask("localhost", None, None, "/-/")),
        Err(AddressError::Path)
    );
    assert_eq!(
        hosts.parse(ask("localhost", None, None, "/-/abc")),
        Err(AddressError::Path)
    );
}

#[test]
fn names_of_other_machines_are_nobodys() {
    let hosts = Hosts::new(Some("sbx.test"));
    for host in [
        "web-1.example.com",
        "my-host",
        "example.com",
        "sbx.test",
        "notsbx.test",
        "api.example.com",
        "1.2.3.4",
        "2130706433",
    ] {
        assert_eq!(
            hosts.parse(ask(host, None, None, "/")),
            Ok(Target::Unaddressed),
            "{host}"
        );
    }
}

fn field(bytes: &Option<Vec<u8>>) -> Field<'_> {
    bytes.as_deref().map_or(Field::Absent, Field::One)
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_never_invent(
        host in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
        id in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..80)),
        port in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..8)),
        path in "\\PC*",
    ) {
        let asked = Asked { host: field(&host), id: field(&id), port: field(&port), path: &path };
        for hosts in [Hosts::default(), Hosts::new(Some("sbx.test"))] {
            if let Ok(Target::Sandbox { prefix, .. }) = hosts.parse(asked) {
                prop_assert!(path.is_char_boundary(prefix));
            }
        }
    }

    #[test]
    fn near_misses_never_panic_and_keep_to_the_rules(
        host in "[0-9a-zA-Z+_-]{0,6}-?[a-zA-Z0-9-]{0,8}(\\.sbx\\.test)?(:[0-9]{0,6})?",
        id in proptest::option::of("[a-zA-Z0-9-]{0,8}"),
        port in proptest::option::of("[+ 0-9]{0,6}"),
        path in "(/-/)?[a-z0-9/.-]{0,12}",
    ) {
        let asked = ask(&host, id.as_deref(), port.as_deref(), &path);
        for hosts in [Hosts::default(), Hosts::new(Some("sbx.test"))] {
            if let Ok(Target::Sandbox { id, port, prefix }) = hosts.parse(asked) {
                prop_assert!(!id.is_empty() && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
                // The text that was read is the text that the number writes.
                let written = port.to_string();
                let seen = [&host, asked_text(&asked.port), &path].iter().any(|text| text.contains(&written));
                prop_assert!(seen, "{port} is nowhere in the request");
                prop_assert!(prefix <= path.len());
            }
        }
    }

    #[test]
    fn what_is_written_is_what_is_read(id in "[a-z0-9]{1,57}", port in 1..=u16::MAX) {
        let hosts = Hosts::new(Some("sbx.test"));
        let host = format!("{port}-{id}.sbx.test");
        prop_assert_eq!(hosts.parse(ask(&host, None, None, "/")), Ok(sandbox(&id, port, 0)));
        let (number, path) = (port.to_string(), format!("/-/{id}/{port}/x"));
        prop_assert_eq!(hosts.parse(ask("localhost", Some(&id), Some(&number), "/")), Ok(sandbox(&id, port, 0)));
        prop_assert_eq!(hosts.parse(ask("localhost", None, None, &path)), Ok(sandbox(&id, port, path.len() - 2)));
    }
}

fn asked_text<'a>(field: &Field<'a>) -> &'a str {
    match field {
        Field::One(bytes) => std::str::from_utf8(bytes).unwrap(),
        Field::Absent | Field::Many => "",
    }
}

/// Every port there is, in the one spelling that counts and in those that somebody else might read
/// as the same number: what is checked is what is dialled.
#[test]
fn every_port_is_itself_and_no_other_spelling_is_a_port() {
    let hosts = Hosts::new(Some("sbx.test"));
    for number in 0..=u16::MAX {
        let text = number.to_string();
        let (host, path) = (format!("{text}-box.sbx.test"), format!("/-/box/{text}/"));
        let asked = [
            ask(&host, None, None, "/"),
            ask("localhost", Some("box"), Some(&text), "/"),
            ask("localhost", None, None, &path),
        ];
        for asked in asked {
            match hosts.parse(asked) {
                Ok(Target::Sandbox { port, .. }) => {
                    assert_eq!(port.get(), number);
                    assert_eq!(port == Port::AGENT, number == 49983);
                    assert_eq!(port.to_string(), text);
                }
                other => assert_eq!((number, other), (0, Err(AddressError::Port))),
            }
        }
        for other in [
            format!("0{number}"),
            format!("+{number}"),
            format!("-{number}"),
            format!("{number} "),
            format!(" {number}"),
            format!("{number}."),
            format!("{number}.0"),
            format!("{number}e0"),
            format!("{number}_"),
            format!("0x{number:x}"),
            format!("0o{number:o}"),
            format!("{}", u32::from(number) + 65_536),
            format!("%3{number}"),
            text.replace('1', "\u{661}").replace('0', "\u{660}") + "\u{660}",
        ] {
            assert_eq!(Port::parse(other.as_bytes()), None, "{other:?}");
            let by_header = ask("localhost", Some("box"), Some(&other), "/");
            assert!(hosts.parse(by_header).is_err(), "{other:?}");
        }
    }
}
