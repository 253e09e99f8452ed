//! Selectors: `labelSelector` and `fieldSelector`.

use model::{Key, Name, Namespace, kinds::Scope, validate};
use store::{Query, Record, record::LabelTerm};

use crate::{params::Params, refusal::Refusal, served::Served};

/// Which records of a kind a client wants.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    served: Served,
    namespace: Option<Namespace>,
    labels: Vec<Label>,
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
enum Label {
    Term(LabelTerm),
    /// Its value is a whole number above this.
    Above(Box<str>, i64),
    /// Its value is a whole number below this.
    Below(Box<str>, i64),
}

#[derive(Clone, Debug, PartialEq)]
struct Field {
    path: Box<str>,
    equal: bool,
    value: Box<str>,
}

impl Selector {
    /// Reads the selectors of a request.
    pub(crate) fn new(
        served: Served,
        namespace: Option<Namespace>,
        params: &Params,
    ) -> Result<Self, Refusal> {
        let labels = parse_labels(params.get("labelSelector").unwrap_or_default())
            .map_err(|e| Refusal::bad_field("labelSelector", e))?;
        let fields = parse_fields(params.get("fieldSelector").unwrap_or_default())
            .map_err(|e| Refusal::bad_field("fieldSelector", e))?;
        if let Some(field) = fields.iter().find(|f| !served.is_selectable(&f.path)) {
            return Err(Refusal::bad_field(
                "fieldSelector",
                format!(
                    "field label not supported: {}: use one of {}",
                    field.path,
                    served.selectable().join(", ")
                ),
            ));
        }
        Ok(Self {
            served,
            namespace,
            labels,
            fields,
        })
    }

    /// Whether a record is wanted.
    pub(crate) fn matches(&self, record: &Record) -> bool {
        (self.namespace.is_none() || self.namespace == record.meta.namespace)
            && self.labels.iter().all(|label| label.holds(record))
            && self.fields.iter().all(|field| {
                let have = self.served.field(record, &field.path);
                (have.as_deref().unwrap_or_default() == &*field.value) == field.equal
            })
    }

    /// Whether every record of the kind and namespace is wanted.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one record that can be wanted, if only one can be.
    pub(crate) fn only_key(&self) -> Option<Key> {
        let name = self
            .fields
            .iter()
            .find(|f| f.equal && &*f.path == "metadata.name")?;
        let everywhere = self.namespace.is_none() && self.served.scope() == Scope::Namespaced;
        if everywhere {
            return None;
        }
        Some(Key {
            kind: self.served.kind(),
            namespace: self.namespace.clone(),
            name: match self.served {
                Served::Foreign(_) => Name::foreign(&name.value),
                Served::Kind(_) | Served::Events => Name::new(&name.value),
            }
            .ok()?,
        })
    }

    /// As much of this as a store can do; the rest is up to [`Self::matches`].
    pub(crate) fn to_query(&self) -> Query {
        let mut query = Query::kind(self.served.kind());
        query.namespace.clone_from(&self.namespace);
        for label in &self.labels {
            if let Label::Term(term) = label {
                query.labels.push(term.clone());
            }
        }
        for field in self.fields.iter().filter(|f| f.equal) {
            match (&*field.path, Namespace::new(&field.value)) {
                ("metadata.namespace", Ok(namespace)) if query.namespace.is_none() => {
                    query.namespace = Some(namespace);
                }
                (path, _) => match self.served.index(path) {
                    // Stores leave absent fields out, so "is empty" is not a question for them.
                    Some(Index::Field) if !field.value.is_empty() => {
                        query.fields.push((field.path.clone(), field.value.clone()));
                    }
                    Some(Index::Label(label)) => {
                        query = query.label(label, field.value.clone());
                    }
                    Some(Index::Field) | None => {}
                },
            }
        }
        query
    }

    /// Narrows a query to the names after this one.
    pub(crate) fn after(mut query: Query, namespace: Option<Namespace>, name: Name) -> Query {
        query.after = Some((namespace, name));
        query
    }
}

/// How a store finds records by a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Index {
    /// It keeps the field's value.
    Field,
    /// By a label with the same value.
    Label(&'static str),
}

impl Label {
    fn holds(&self, record: &Record) -> bool {
        let number = |key: &str| {
            record
                .meta
                .labels
                .get(key)
                .and_then(|v| v.parse::<i64>().ok())
        };
        match self {
            Self::Term(term) => term.holds(&record.meta.labels),
            Self::Above(key, than) => number(key).is_some_and(|n| n > *than),
            Self::Below(key, than) => number(key).is_some_and(|n| n < *than),
        }
    }
}

fn parse_fields(text: &str) -> Result<Vec<Field>, String> {
    let terms = text
        .split(',')
        .map(str::trim)
        .filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let (path, equal, value) = if let Some((path, value)) = term.split_once("!=") {
                (path, false, value)
            } else if let Some((path, value)) = term.split_once("==") {
                (path, true, value)
            } else if let Some((path, value)) = term.split_once('=') {
                (path, true, value)
            } else {
                return Err(format!(
                    "{term:?} is not a term: write field=value or field!=value"
                ));
            };
            Ok(Field {
                path: path.trim().into(),
                equal,
                value: value.trim().into(),
            })
        })
        .collect()
}

/// Reads a label selector: terms joined by commas, where a set's values have commas of their own.
fn parse_labels(text: &str) -> Result<Vec<Label>, String> {
    let mut terms = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(format!("{text:?} has unbalanced parentheses"));
        }
    }
    if depth != 0 {
        return Err(format!("{text:?} has unbalanced parentheses"));
    }
    terms.push(&text[start..]);
    let terms = terms.into_iter().map(str::trim);
    let labels = terms.filter(|t| !t.is_empty()).map(parse_label);
    labels.collect()
}

fn parse_label(term: &str) -> Result<Label, String> {
    let number = |text: &str| {
        text.trim()
            .parse::<i64>()
            .map_err(|_| format!("{term:?} compares with something that is not a whole number"))
    };
    let one = |value: &str| vec![value.trim().into()];
    let label = if let Some((key, set)) = term.split_once('(') {
        let set = set
            .strip_suffix(')')
            .ok_or(format!("{term:?} is not a term"))?;
        let values: Vec<Box<str>> = set.split(',').map(|v| v.trim().into()).collect();
        match key.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => Label::Term(LabelTerm::In(key.trim().into(), values)),
            Some((key, "notin")) => Label::Term(LabelTerm::NotIn(key.trim().into(), values)),
            Some(_) | None => {
                return Err(format!(
                    "{term:?} is not a term: write key in (a,b) or key notin (a,b)"
                ));
            }
        }
    } else if let Some((key, value)) = term.split_once("!=") {
        Label::Term(LabelTerm::NotIn(key.trim().into(), one(value)))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        Label::Term(LabelTerm::In(key.trim().into(), one(value)))
    } else if let Some((key, value)) = term.split_once('>') {
        Label::Above(key.trim().into(), number(value)?)
    } else if let Some((key, value)) = term.split_once('<') {
        Label::Below(key.trim().into(), number(value)?)
    } else if let Some(key) = term.strip_prefix('!') {
        Label::Term(LabelTerm::Missing(key.trim().into()))
    } else {
        Label::Term(LabelTerm::Exists(term.into()))
    };
    let (key, values): (&str, &[Box<str>]) = match &label {
        Label::Term(LabelTerm::In(key, values) | LabelTerm::NotIn(key, values)) => (key, values),
        Label::Term(LabelTerm::Exists(key) | LabelTerm::Missing(key))
        | Label::Above(key, _)
        | Label::Below(key, _) => (key, &[]),
    };
    if !validate::is_label_key(key) {
        return Err(format!("{key:?} in {term:?} is not a label key"));
    }
    if let Some(value) = values.iter().find(|v| !validate::is_label_value(v)) {
        return Err(format!("{value:?} in {term:?} is not a label value"));
    }
    Ok(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_of_a_label_selector_is_understood() {
        let boxed = |v: &[&str]| v.iter().map(|s| Box::from(*s)).collect::<Vec<Box<str>>>();
        let term = Label::Term;
        let table = [
            ("", vec![]),
            ("a=b", vec![term(LabelTerm::In("a".into(), boxed(&["b"])))]),
            (
                "a==b,c!=d",
                vec![
                    term(LabelTerm::In("a".into(), boxed(&["b"]))),
                    term(LabelTerm::NotIn("c".into(), boxed(&["d"]))),
                ],
            ),
            (
                "x.io/a in (b, c),!d , e",
                vec![
                    term(LabelTerm::In("x.io/a".into(), boxed(&["b", "c"]))),
                    term(LabelTerm::Missing("d".into())),
                    term(LabelTerm::Exists("e".into())),
                ],
            ),
            (
                "a notin (b)",
                vec![term(LabelTerm::NotIn("a".into(), boxed(&["b"])))],
            ),
            ("a=", vec![term(LabelTerm::In("a".into(), boxed(&[""])))]),
            (
                "n>5,m<7",
                vec![Label::Above("n".into(), 5), Label::Below("m".into(), 7)],
            ),
        ];
        for (text, expected) in table {
            assert_eq!(parse_labels(text), Ok(expected), "{text}");
        }
        for bad in [
            "a in b",
            "a in (b",
            "a=b=c",
            "a in ((b))",
            "-a",
            "a like (b)",
            "a>b",
            "=b",
            ")(",
        ] {
            assert!(parse_labels(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn field_selectors_know_equal_and_not_equal() {
        let fields = parse_fields("metadata.name=a, spec.pool!=b,status.phase==").unwrap();
        let shown: Vec<_> = fields
            .iter()
            .map(|f| (&*f.path, f.equal, &*f.value))
            .collect();
        assert_eq!(
            shown,
            [
                ("metadata.name", true, "a"),
                ("spec.pool", false, "b"),
                ("status.phase", true, "")
            ]
        );
        assert!(parse_fields("metadata.name").is_err());
    }
}
