//! The table of keys as command-line flags.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, builder::ValueParser};

use super::{Fallback, KEYS};

/// `--config` and a flag for each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The file.
    pub(crate) file: Option<PathBuf>,
    /// What was given, by the key's name.
    pub(crate) given: Vec<(&'static str, String)>,
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = KEYS.iter().filter_map(|key| {
            let value = matches.get_one::<String>(key.name)?;
            Some((key.name, value.clone()))
        });
        Ok(Self {
            file: matches.get_one::<PathBuf>("config").cloned(),
            given: given.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file with any of the settings below, as `log.level = \"debug\"` [env: DORMOUSE_CONFIG]");
        let keys = KEYS.iter().map(|key| {
            let default = match key.default {
                Fallback::Fixed(text) => text,
                Fallback::Found(_) => "where this user keeps data",
            };
            let help = format!(
                "{} [default: {default}] [env: {}]",
                key.help.trim(),
                key.variable()
            );
            // Checked here too, so that a bad value is a usage error that shows its flag.
            let check = key.check;
            Arg::new(key.name)
                .long(key.flag())
                .value_name("VALUE")
                .value_parser(ValueParser::new(move |text: &str| check(text)))
                .help(help)
                .help_heading("Settings")
        });
        command.arg(file).args(keys)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
