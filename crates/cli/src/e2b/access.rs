//! Which server's E2B API, and as whom.
//!
//! Programs name one with `E2B_API_KEY` and `E2B_API_URL`, as they do for E2B's own tools, and act
//! for that key's team. Whoever runs a server needs neither: its kubeconfig says where the API is
//! and holds a token with which the commands act for any team.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use wire::Secret;

use super::{Api, Endpoint};
use crate::{
    connect::{Connection, Scope},
    kubeconfig::Credentials,
};

const KEY_VARIABLE: &str = "E2B_API_KEY";
const URL_VARIABLE: &str = "E2B_API_URL";
const SANDBOX_URL_VARIABLE: &str = "E2B_SANDBOX_URL";

/// Which server, and which team.
#[derive(Debug, Default, Args)]
pub struct Access {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// With what the API is opened.
pub(crate) enum Who {
    /// A key, for its team.
    Key(Secret),
    /// The token of a kubeconfig, for the team that is named.
    Admin {
        token: Secret,
        team: String,
        kubeconfig: PathBuf,
    },
}

impl Access {
    /// The API.
    pub(crate) fn api(&self, is_root: bool) -> anyhow::Result<Api> {
        if !self.connection.is_named()
            && let Some(api) = self.by_variables()?
        {
            return Ok(api);
        }
        let (target, kubeconfig) = self.connection.target(is_root)?;
        let Some(url) = &target.e2b else {
            bail!(
                "the server at {} runs no sandboxes: start it with `--runtime local`",
                target.server
            );
        };
        let endpoint = Endpoint::parse(url)?;
        // The token opens everything.
        if !endpoint.is_private() {
            bail!(
                "{url} is neither on this machine nor has TLS, so the token of {} is not sent \
                 there: make a key with `dormouse key create` and set {KEY_VARIABLE} and \
                 {URL_VARIABLE}",
                kubeconfig.display()
            );
        }
        let team = self.scope.namespace.clone();
        let Credentials::Token(token) = target.who else {
            bail!(
                "{} has a certificate and no token, which the E2B API does not take: set \
                 {KEY_VARIABLE} (`dormouse key create` makes one)",
                kubeconfig.display()
            );
        };
        let who = Who::Admin {
            token: token.into(),
            team: team.unwrap_or(target.namespace),
            kubeconfig,
        };
        Ok(Api::new(endpoint.clone(), Some(endpoint), who))
    }

    /// The API that variables name, if they do.
    fn by_variables(&self) -> anyhow::Result<Option<Api>> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let (Some(key), Some(url)) = (variable(KEY_VARIABLE), variable(URL_VARIABLE)) else {
            return Ok(None);
        };
        if let Some(team) = &self.scope.namespace {
            bail!(
                "{KEY_VARIABLE} is a key of one team, so {team:?} cannot be chosen: leave \
                 --namespace out, or unset {KEY_VARIABLE}"
            );
        }
        let endpoint = Endpoint::parse(&url).context(URL_VARIABLE)?;
        let sandboxes = variable(SANDBOX_URL_VARIABLE);
        let sandboxes = sandboxes.map(|url| Endpoint::parse(&url).context(SANDBOX_URL_VARIABLE));
        Ok(Some(Api::new(
            endpoint,
            sandboxes.transpose()?,
            Who::Key(key.into()),
        )))
    }

    /// The API of a server that answers now. None if there is no sign of one on this machine; why
    /// is said where there is something to say.
    pub(crate) async fn running(&self, is_root: bool) -> anyhow::Result<Result<Api, String>> {
        if self.connection.is_named() || self.by_variables()?.is_some() {
            let api = self.api(is_root)?;
            api.health().await?;
            return Ok(Ok(api));
        }
        let api = match self.api(is_root) {
            Ok(api) => api,
            Err(why) => return Ok(Err(format!("{why:#}"))),
        };
        Ok(match api.health().await {
            Ok(()) => Ok(api),
            Err(why) => Err(format!("{why:#}")),
        })
    }
}
