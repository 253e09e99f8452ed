//! The text of a key: `e2b_` and forty hexadecimal digits, 160 random bits.
//!
//! So many bits cannot be guessed, however fast the hash is; a slow one would only slow down every
//! request.

use kit::Entropy;
use model::{
    ApiKey, Metadata, Name, Namespace, Object, Uid,
    api_key::{ApiKeySpec, KEY_DIGITS, KEY_PREFIX, KeyHash, Mask, SHOWN_FIRST, SHOWN_LAST},
    team::Quotas,
    workload::Secret,
};
use sha2::{Digest as _, Sha256};

/// What is wanted of a new key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewKey {
    /// What people call it.
    pub display_name: Box<str>,
    /// The person who uses it.
    pub user: Option<Box<str>>,
    /// The most that may be had with it, within what its team may have.
    pub quotas: Quotas,
}

impl NewKey {
    /// A key of this name, limited by nothing but its team.
    #[must_use]
    pub fn named(display_name: impl Into<Box<str>>) -> Self {
        Self {
            display_name: display_name.into(),
            ..Self::default()
        }
    }
}

/// Makes a key: the record to store, and the text, which nobody can find out later.
#[must_use]
pub fn mint(entropy: &Entropy, team: Namespace, wish: NewKey) -> (ApiKey, Secret) {
    let name = match Name::new(Uid::from_random(entropy.u128()).to_string()) {
        Ok(name) => name,
        Err(never) => unreachable!("a uid is a name: {never}"),
    };
    mint_as(entropy, team, name, wish)
}

/// Makes a key that goes by this name.
pub(crate) fn mint_as(
    entropy: &Entropy,
    team: Namespace,
    name: Name,
    wish: NewKey,
) -> (ApiKey, Secret) {
    let mut bits = [0; KEY_DIGITS / 2];
    entropy.fill(&mut bits);
    let digits: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{KEY_PREFIX}{digits}");
    let spec = ApiKeySpec {
        display_name: wish.display_name,
        hash: hash(&text),
        mask: Mask {
            first: digits[..SHOWN_FIRST].into(),
            last: digits[KEY_DIGITS - SHOWN_LAST..].into(),
        },
        user: wish.user,
        quotas: wish.quotas,
    };
    let record = Object::new(Metadata::new(Some(team), name), spec);
    (record, Secret::new(text))
}

/// What is kept of a key.
#[must_use]
pub fn hash(text: &str) -> KeyHash {
    KeyHash::from_sha256(Sha256::digest(text).into())
}

/// Whether this could be a key.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix(KEY_PREFIX)
        .is_some_and(|digits| digits.len() == KEY_DIGITS && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use model::validate::{Problems, Rules as _};
    use proptest::prelude::*;

    use super::*;

    fn team() -> Namespace {
        Namespace::new("blue").unwrap()
    }

    #[test]
    fn only_what_looks_like_a_key_is_one() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        assert!(is_key(&format!("e2b_{digits}")));
        for bad in [
            "",
            "e2b_",
            digits,
            &format!("e2b_{digits}0"),
            &format!("e2b_{}", &digits[1..]),
            &format!("e2b_{}", digits.to_uppercase()),
            &format!("E2B_{digits}"),
            &format!(" e2b_{digits}"),
            &format!("e2b_{}g", &digits[1..]),
        ] {
            assert!(!is_key(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_record_shows_six_digits_of_its_key_and_passes_the_rules(seed: u64, name in "[ -~]{1,40}") {
            let entropy = Entropy::seeded(seed);
            let wish = NewKey::named(format!("x{name}"));
            let (record, secret) = mint(&entropy, team(), wish.clone());
            let text = secret.reveal();
            prop_assert!(is_key(text));
            prop_assert_eq!(&record.spec.hash, &hash(text));
            let mask = &record.spec.mask;
            prop_assert_eq!(&*mask.first, &text[4..6]);
            prop_assert_eq!(&*mask.last, &text[40..44]);
            let mut problems = Problems::default();
            ApiKeySpec::check(&record, &mut problems);
            prop_assert_eq!(problems.into_vec(), []);

            // Whatever the record holds besides the name is the same for two keys that differ in
            // no digit but hidden ones, the hash and the id aside: nothing else comes from the key.
            let (other, _) = mint(&Entropy::seeded(seed ^ 1), team(), wish);
            let mut other = other.spec;
            other.hash = record.spec.hash.clone();
            other.mask = mask.clone();
            prop_assert_eq!(&other, &record.spec);

            // Neither the record nor what a log would show of it has seven digits in a row.
            let stored = record.encode_spec();
            let shown = format!("{record:?} {secret:?}");
            for at in 4..=text.len() - 7 {
                let part = &text[at..at + 7];
                prop_assert!(!shown.contains(part), "{shown}");
                prop_assert!(!stored.replace(record.spec.hash.as_str(), "").contains(part), "{stored}");
            }
            prop_assert!(!shown.contains(record.spec.hash.as_str()));
        }
    }

    #[test]
    fn no_two_keys_are_alike() {
        let entropy = Entropy::from_os();
        let (one, first) = mint(&entropy, team(), NewKey::named("a"));
        let (two, second) = mint(&entropy, team(), NewKey::named("a"));
        assert_ne!(first, second);
        assert_ne!(one.spec.hash, two.spec.hash);
        assert_ne!(one.metadata.name, two.metadata.name);
    }
}
