//! What no well-behaved client sends. Well-behaved ones drive the agent's tests.

use proptest::{collection::vec, prelude::*};

use super::*;

/// A packet of these bytes.
fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[..], body].concat()
}

fn hello() -> Vec<u8> {
    framed(&[INIT, 0, 0, 0, 3])
}

fn talk(said: &[u8]) -> (io::Result<()>, Vec<u8>) {
    let mut answers = Vec::new();
    let served = serve(said, &mut answers);
    (served, answers)
}

#[test]
fn who_does_not_speak_sftp_is_let_go() {
    for said in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0, 0, 0, 0],
        &[0xff; 16],
        &framed(&[INIT, 0, 0, 0, 2]),
        &framed(&[3, 0, 0, 0, 3]),
        &[0, 0, 0, 9, 1],
        &[0, 0],
    ] {
        let (served, answers) = talk(said);
        assert!(served.is_err() && answers.is_empty(), "{said:?}");
    }
    assert!(talk(b"").0.is_ok());
}

#[test]
fn a_request_that_is_cut_off_is_answered_and_the_next_one_too() {
    let whole = [&[3, 0, 0, 0, 7, 0, 0, 0, 1, b'x'][..], &[0; 8]].concat();
    for kind in 0..=255u8 {
        // From the id on: without one there is nobody to answer to.
        for cut in 5..whole.len() {
            let mut request = whole[..cut].to_vec();
            request[0] = kind;
            // Nothing is to be changed where this runs.
            if [13, 15].contains(&kind) && cut >= 10 || kind == 14 || kind == 3 {
                continue;
            }
            let unknown = framed(&[99, 0, 0, 0, 8]);
            let (served, answers) = talk(&[hello(), framed(&request), unknown].concat());
            served.unwrap();
            let last = &answers[answers.len() - 32..];
            let code = [0, 0, 0, 8, 0, 0, 0, 8];
            let is_there = answers.windows(8).any(|part| part == code);
            assert!(is_there, "{kind} {cut}: {last:?}");
        }
    }
}

#[test]
fn handles_of_nobody_are_refused() {
    for kind in [4u8, 5, 6, 8, 10, 12] {
        let mut request = vec![kind, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 9];
        request.extend_from_slice(&[0; 16]);
        let (served, answers) = talk(&[hello(), framed(&request)].concat());
        served.unwrap();
        let failure = [101, 0, 0, 0, 1, 0, 0, 0, 4];
        assert!(answers.windows(9).any(|part| part == failure), "{kind}");
    }
}

/// Kinds that change nothing where this runs, whatever they are asked for, and unknown ones.
const HARMLESS: [u8; 13] = [4, 5, 6, 7, 8, 11, 12, 16, 17, 19, 0, 99, 255];

/// Bodies with some sense in them: numbers, and strings that are as long as they say.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let string = prop_oneof![
        Just(b"/".to_vec()),
        Just(b"/proc/self/../.".to_vec()),
        Just(b"\0".to_vec()),
        Just(vec![0, 0, 0, 0]),
        vec(any::<u8>(), 0..40),
    ];
    let field = prop_oneof![
        string.prop_map(|bytes| framed(&bytes)),
        any::<u32>().prop_map(|number| number.to_be_bytes().to_vec()),
        any::<u64>().prop_map(|number| number.to_be_bytes().to_vec()),
        vec(any::<u8>(), 0..8),
    ];
    vec(field, 0..4).prop_map(|fields| fields.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_request_has_one_answer_that_is_whole_and_names_it(
        asked in vec((proptest::sample::select(&HARMLESS[..]), any::<u32>(), bodies()), 0..20),
    ) {
        let mut said = hello();
        for (kind, id, body) in &asked {
            said.extend(framed(&[&[*kind][..], &id.to_be_bytes(), body].concat()));
        }
        let (served, answers) = talk(&said);
        prop_assert!(served.is_ok());
        let mut left = &answers[..];
        let mut seen = Vec::new();
        while let Some(answer) = read_packet(&mut left).unwrap() {
            seen.push(answer);
        }
        prop_assert_eq!(seen.len(), asked.len() + 1);
        for (answer, (_, id, _)) in seen[1..].iter().zip(&asked) {
            prop_assert!((101..=105).contains(&answer[0]) || answer[0] == 201);
            prop_assert_eq!(&answer[1..5], &id.to_be_bytes());
        }
    }

    #[test]
    fn noise_ends_the_conversation_and_nothing_else(noise in vec(any::<u8>(), 0..200)) {
        // Whether it is taken for packets or not, the reader comes to an end.
        let _ = talk(&noise);
        let mut left = &noise[..];
        while let Ok(Some(packet)) = read_packet(&mut left) {
            prop_assert!(!packet.is_empty() && packet.len() <= LONGEST);
        }
    }
}
