use proptest::prelude::*;

use super::*;

fn name(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in text.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn question(text: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![7, 8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(name(text));
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

fn answer(question: &[u8], records: &[(Vec<u8>, u16, u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[2] |= 0x80;
    bytes[7] = records.len() as u8;
    for (name, kind, time, data) in records {
        bytes.extend(name);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(time.to_be_bytes());
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
    }
    bytes
}

#[test]
fn addresses_are_found_by_way_of_aliases_only() {
    let bytes = question("Www.Example.com", 1);
    let question = Question::read(&bytes).unwrap();
    assert_eq!(question.name.as_ref().unwrap().as_str(), "www.example.com");
    let answer = answer(
        &bytes,
        &[
            // A pointer to the name in the question.
            (vec![0xc0, 12], 5, 30, name("cdn.net")),
            (name("evil.org"), 1, 60, vec![6, 6, 6, 6]),
            (name("cdn.net"), 1, 60, vec![1, 2, 3, 4]),
            (name("CDN.net"), 1, 90, vec![1, 2, 3, 5]),
            (name("cdn.net"), 28, 90, vec![0; 16]),
            (vec![0xc0, 12], 1, 60, vec![7, 7, 7, 7]),
        ],
    );
    assert!(question.is_answered_by(&answer, [7, 8]));
    assert!(!question.is_answered_by(&answer, [7, 9]));
    let found = addresses(&answer, &question);
    let found: Vec<_> = found
        .iter()
        .map(|(to, time)| (to.octets(), time.as_secs()))
        .collect();
    assert_eq!(found, [([1, 2, 3, 4], 60), ([1, 2, 3, 5], 90)]);
}

#[test]
fn what_asks_in_another_way_is_no_question() {
    let good = question("a.b", 1);
    assert!(Question::read(&good).is_some());
    for (at, value) in [
        (2, 0x81),
        (2, 0x28),
        (5, 2),
        (5, 0),
        (7, 1),
        (9, 1),
        (12, 0xc0),
    ] {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(Question::read(&bad).is_none(), "{at}");
    }
    let mut chaos = good.clone();
    *chaos.last_mut().unwrap() = 3;
    assert!(Question::read(&chaos).is_none());
    for cut in 0..good.len() {
        assert!(Question::read(&good[..cut]).is_none(), "{cut}");
    }
}

#[test]
fn a_refusal_repeats_the_question_and_nothing_else() {
    let mut bytes = question("a.b", 28);
    let length = bytes.len();
    // An additional record, as most askers send.
    bytes[11] = 1;
    bytes.extend([0, 0, 41, 4, 0, 0, 0, 0, 0, 0, 0]);
    let question = Question::read(&bytes).unwrap();
    assert!(question.wants_version_6());
    let refused = refusal(&question, NO_SUCH_NAME);
    assert_eq!(refused.len(), length);
    assert_eq!(refused[..12], [7, 8, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_name_that_goes_round_in_circles_ends() {
    let bytes = question("a.b", 1);
    let question = Question::read(&bytes).unwrap();
    let at = bytes.len() as u8;
    let answer = answer(&bytes, &[(vec![0xc0, at], 1, 1, vec![1, 1, 1, 1])]);
    assert!(addresses(&answer, &question).is_empty());
}

proptest! {
    #[test]
    fn no_bytes_make_it_fail(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0_usize..300) {
        let asked = question("example.com", 1);
        let question = Question::read(&asked).unwrap();
        let _ = Question::read(&bytes);
        let mut whole = answer(&asked, &[(name("example.com"), 1, 5, vec![1, 2, 3, 4])]);
        whole.extend(&bytes);
        whole[7] = 200;
        whole.truncate(cut);
        let _ = question.is_answered_by(&whole, [7, 8]);
        let _ = addresses(&whole, &question);
    }
}
