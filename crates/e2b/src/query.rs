//! Queries: every parameter is known to its route, or refused by name.

use std::str::FromStr;

use crate::{refusal::Refusal, route::Param};

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query of a route that knows these parameters.
    pub(crate) fn read(text: Option<&str>, known: &[Param]) -> Result<Self, Refusal> {
        let mut pairs = Vec::new();
        for (name, value) in form_urlencoded::parse(text.unwrap_or_default().as_bytes()) {
            let Some(param) = known.iter().find(|param| param.name == name) else {
                return Err(Refusal::bad_field(&name, "unknown query parameter"));
            };
            let again = pairs.iter().any(|(known, _)| *known == name);
            if again && !param.repeats {
                return Err(Refusal::bad_field(&name, "say it once"));
            }
            pairs.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(pairs))
    }

    /// The value of a parameter; an empty one counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| &**value).filter(|v| !v.is_empty())
    }

    /// The values of a parameter that is a list, with commas or by repeating it.
    pub(crate) fn list(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(known, _)| known == name)
            .flat_map(|(_, values)| values.split(','))
            .map(str::trim)
            .filter(|value| !value.is_empty())
            .collect()
    }

    /// A parameter that is a value of a type.
    pub(crate) fn parsed<T: FromStr>(&self, name: &str, what: &str) -> Result<Option<T>, Refusal> {
        self.get(name)
            .map(|text| text.parse().map_err(|_| Refusal::bad_field(name, what)))
            .transpose()
    }

    /// A whole number within bounds.
    pub(crate) fn number(&self, name: &str, least: i64, most: i64) -> Result<Option<i64>, Refusal> {
        let what = format!("use a whole number from {least} to {most}");
        match self.parsed::<i64>(name, &what)? {
            Some(number) if !(least..=most).contains(&number) => {
                Err(Refusal::bad_field(name, what))
            }
            other => Ok(other),
        }
    }
}
