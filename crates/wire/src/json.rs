//! How proto3 writes its values in JSON, where that differs from what `serde` would do.
//!
//! Reading is as lenient as the mapping asks: numbers may come as strings, enums as numbers, bytes
//! in either base64 alphabet with or without padding, and `null` is the default of any field.

use std::{fmt, str::FromStr};

use base64::{
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serializer, de};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const READ: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const READ_URL: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// Appends `data` in base64 to a buffer.
pub fn push_base64(out: &mut Vec<u8>, data: &[u8]) {
    base64_simd::STANDARD.encode_append(data, out);
}

/// A field whose JSON `null` means its default.
///
/// # Errors
/// Those of the value.
pub fn null_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Whether a field has its default value and is therefore left out.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

struct NumberVisitor<T>(std::marker::PhantomData<T>);

impl<T> de::Visitor<'_> for NumberVisitor<T>
where
    T: TryFrom<i64> + TryFrom<u64> + FromStr + Default,
{
    type Value = T;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an integer in range, or one in a string")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        T::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
        T::try_from(value).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        // 1e2 and 3.0 are integers to proto3. What is beyond exact doubles is not taken.
        if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 {
            let whole = value as i64;
            return self.visit_i64(whole);
        }
        Err(E::invalid_value(de::Unexpected::Float(value), &self))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<T, E> {
        value
            .parse()
            .map_err(|_| E::invalid_value(de::Unexpected::Str(value), &self))
    }

    fn visit_unit<E: de::Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

/// An integer of 32 bits: written as a number.
pub mod number {
    use super::{Deserializer, FromStr, NumberVisitor};

    /// Reads a number, or a string that holds one.
    ///
    /// # Errors
    /// If it is neither, or out of range.
    pub fn deserialize<'de, D, T>(from: D) -> Result<T, D::Error>
    where
        D: Deserializer<'de>,
        T: TryFrom<i64> + TryFrom<u64> + FromStr + Default,
    {
        from.deserialize_any(NumberVisitor(std::marker::PhantomData))
    }
}

/// An optional integer of 32 bits.
pub mod opt_number {
    use serde::Deserialize;

    use super::{Deserializer, FromStr};

    /// Reads a number, a string that holds one, or nothing.
    ///
    /// # Errors
    /// If it is neither, or out of range.
    pub fn deserialize<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
    where
        D: Deserializer<'de>,
        T: TryFrom<i64> + TryFrom<u64> + FromStr + Default,
    {
        struct Number<T>(T);
        impl<'de, T> Deserialize<'de> for Number<T>
        where
            T: TryFrom<i64> + TryFrom<u64> + FromStr + Default,
        {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                super::number::deserialize(from).map(Self)
            }
        }
        Ok(Option::<Number<T>>::deserialize(from)?.map(|number| number.0))
    }
}

/// An integer of 64 bits: written as a string, because JavaScript's numbers have 53.
pub mod int64 {
    use super::{Deserializer, NumberVisitor, Serializer};

    /// Writes the number as a string.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    /// Reads a number, or a string that holds one.
    ///
    /// # Errors
    /// If it is neither, or out of range.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        from.deserialize_any(NumberVisitor(std::marker::PhantomData))
    }
}

/// Bytes that may be absent: base64.
pub mod opt_bytes {
    use base64::Engine as _;

    use super::{Bytes, Deserialize, Deserializer, READ, READ_URL, Serializer, de};

    /// Writes base64.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => to.serialize_str(&base64_simd::STANDARD.encode_to_string(bytes)),
            None => to.serialize_none(),
        }
    }

    /// Reads base64 of either alphabet.
    ///
    /// # Errors
    /// If it is not base64.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        let Some(text) = Option::<std::borrow::Cow<'de, str>>::deserialize(from)? else {
            return Ok(None);
        };
        READ.decode(text.as_bytes())
            .or_else(|_| READ_URL.decode(text.as_bytes()))
            .map(|bytes| Some(Bytes::from(bytes)))
            .map_err(|_| de::Error::custom("not base64"))
    }
}

/// An enum of the protocol: its numbers and its names in JSON.
pub trait Named: Copy + Into<i32> + 'static {
    /// Every member with its full name.
    const NAMES: &'static [(Self, &'static str)];
}

/// An enum: written by its name, or by its number where that has none.
pub mod enumeration {
    use std::{fmt, marker::PhantomData};

    use super::{Deserializer, Named, Serializer, de};

    /// Writes the name.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer, E: Named>(value: i32, to: S) -> Result<S::Ok, S::Error> {
        match E::NAMES
            .iter()
            .find(|(member, _)| (*member).into() == value)
        {
            Some((_, name)) => to.serialize_str(name),
            None => to.serialize_i32(value),
        }
    }

    struct Visitor<E>(PhantomData<E>);

    impl<E: Named> de::Visitor<'_> for Visitor<E> {
        type Value = i32;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("the name or number of an enum's member")
        }

        fn visit_str<R: de::Error>(self, name: &str) -> Result<i32, R> {
            E::NAMES
                .iter()
                .find(|(_, known)| *known == name)
                .map(|(member, _)| (*member).into())
                .ok_or_else(|| R::invalid_value(de::Unexpected::Str(name), &self))
        }

        fn visit_i64<R: de::Error>(self, value: i64) -> Result<i32, R> {
            i32::try_from(value).map_err(|_| R::invalid_value(de::Unexpected::Signed(value), &self))
        }

        fn visit_u64<R: de::Error>(self, value: u64) -> Result<i32, R> {
            i32::try_from(value)
                .map_err(|_| R::invalid_value(de::Unexpected::Unsigned(value), &self))
        }

        fn visit_unit<R: de::Error>(self) -> Result<i32, R> {
            Ok(0)
        }
    }

    /// Reads a name or a number.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn deserialize<'de, D: Deserializer<'de>, E: Named>(from: D) -> Result<i32, D::Error> {
        from.deserialize_any(Visitor::<E>(PhantomData))
    }
}
