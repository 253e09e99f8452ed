//! What is in force and from where.

use std::fmt::Write as _;

use clap::ValueEnum;
use serde_json::json;

use super::load::InForce;

/// How to show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// A file that sets the same.
    Toml,
}

/// The text of it.
pub(crate) fn show(in_force: &InForce, format: Format) -> String {
    match format {
        Format::Table => {
            let header = ["KEY", "VALUE", "FROM"].map(str::to_owned);
            let rows = in_force.values.iter().map(|(key, value, origin)| {
                vec![key.name.to_owned(), value.clone(), origin.to_string()]
            });
            cli::table(&header, &rows.collect::<Vec<_>>())
        }
        Format::Json => {
            let values: serde_json::Map<_, _> = in_force
                .values
                .iter()
                .map(|(key, value, origin)| {
                    let entry = json!({"value": value, "from": origin.to_string()});
                    (key.name.to_owned(), entry)
                })
                .collect();
            format!("{:#}\n", serde_json::Value::Object(values))
        }
        Format::Toml => {
            in_force
                .values
                .iter()
                .fold(String::new(), |mut text, (key, value, origin)| {
                    let value = toml::Value::from(value.as_str());
                    // Dotted keys: the order of the table stays, and each line can be read alone.
                    let _ = writeln!(text, "{} = {value} # {origin}", key.name);
                    text
                })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::config::load::{Environment, load};

    #[test]
    fn what_is_shown_as_toml_is_a_file_that_sets_the_same() {
        let environment = Environment {
            is_root: true,
            ..Environment::default()
        };
        let flags = [("log.level", "debug".to_owned())];
        let before = load(&environment, None, &flags).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(show(&before, Format::Toml).as_bytes())
            .unwrap();
        let after = load(&environment, Some(file.path()), &[]).unwrap();
        assert_eq!(before.settings, after.settings);
    }
}
