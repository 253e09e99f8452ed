//! The kubeconfig: what a client must know of a server, in the file format of `kubectl`. The server
//! writes it, the commands read it.

use anyhow::{Context as _, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

const NAME: &str = "dormouse";

/// A kubeconfig. Fields of other tools are ignored when it is read.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kubeconfig {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    current_context: String,
}

// Not derived: it holds a token.
impl std::fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kubeconfig({})", self.current_context)
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    extensions: Vec<NamedExtension>,
}

/// What a tool adds for itself; others keep it and look away.
#[derive(Clone, Serialize, Deserialize)]
struct NamedExtension {
    name: String,
    #[serde(default)]
    extension: serde_json::Value,
}

/// Says where the E2B API of the same server is.
const E2B_EXTENSION: &str = "dormouse.dev/e2b";

#[derive(Clone, Serialize, Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Clone, Serialize, Deserialize)]
struct User {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

#[derive(Clone, Serialize, Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Clone, Serialize, Deserialize)]
struct Context {
    cluster: String,
    user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

/// What it says of the server in use.
pub(crate) struct Target {
    /// Where it is.
    pub(crate) server: String,
    /// The name in its certificate, if not that of the address.
    pub(crate) tls_name: Option<String>,
    /// Whom to trust.
    pub(crate) ca_pem: String,
    /// Who we are.
    pub(crate) token: String,
    /// Where to look for objects.
    pub(crate) namespace: String,
    /// Where its E2B API is.
    pub(crate) e2b: Option<String>,
}

impl Kubeconfig {
    /// One server, one user.
    #[must_use]
    pub fn new(server: &str, ca_pem: &str, token: &str) -> Self {
        let name = || NAME.to_owned();
        Self {
            api_version: "v1".to_owned(),
            kind: "Config".to_owned(),
            clusters: vec![NamedCluster {
                name: name(),
                cluster: Cluster {
                    server: server.to_owned(),
                    certificate_authority_data: Some(BASE64_STANDARD.encode(ca_pem)),
                    // Every server has this name, and a CA of its own: a copy of this file works
                    // from elsewhere with nothing changed but the address.
                    tls_server_name: Some("localhost".to_owned()),
                    extensions: Vec::new(),
                },
            }],
            users: vec![NamedUser {
                name: name(),
                user: User {
                    token: Some(token.to_owned()),
                },
            }],
            contexts: vec![NamedContext {
                name: name(),
                context: Context {
                    cluster: name(),
                    user: name(),
                    namespace: Some("default".to_owned()),
                },
            }],
            current_context: name(),
        }
    }

    /// The same, with the URL of the server's E2B API.
    #[must_use]
    pub fn with_e2b(mut self, url: &str) -> Self {
        for entry in &mut self.clusters {
            entry.cluster.extensions = vec![NamedExtension {
                name: E2B_EXTENSION.to_owned(),
                extension: serde_json::json!({"url": url}),
            }];
        }
        self
    }

    /// The text of the file.
    ///
    /// # Errors
    /// If it cannot be written as YAML.
    pub fn to_yaml(&self) -> anyhow::Result<String> {
        Ok(serde_saphyr::to_string(self)?)
    }

    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(serde_saphyr::from_str(text)?)
    }

    /// The server of the current context.
    pub(crate) fn target(&self) -> anyhow::Result<Target> {
        let current = &self.current_context;
        let context = self
            .contexts
            .iter()
            .find(|entry| entry.name == *current)
            .map(|entry| &entry.context)
            .with_context(|| format!("it has no context `{current}`, the current one"))?;
        let cluster = self
            .clusters
            .iter()
            .find(|entry| entry.name == context.cluster)
            .map(|entry| &entry.cluster)
            .with_context(|| format!("it has no cluster `{}`", context.cluster))?;
        let user = self
            .users
            .iter()
            .find(|entry| entry.name == context.user)
            .map(|entry| &entry.user)
            .with_context(|| format!("it has no user `{}`", context.user))?;
        let Some(ca) = &cluster.certificate_authority_data else {
            bail!(
                "cluster `{}` has no certificate-authority-data",
                context.cluster
            );
        };
        let Some(token) = &user.token else {
            bail!("user `{}` has no token", context.user);
        };
        let ca_pem = BASE64_STANDARD
            .decode(ca.trim())
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .context("its certificate-authority-data is not PEM in base64")?;
        Ok(Target {
            server: cluster.server.clone(),
            tls_name: cluster.tls_server_name.clone(),
            ca_pem,
            token: token.clone(),
            namespace: context
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned()),
            e2b: cluster
                .extensions
                .iter()
                .find(|entry| entry.name == E2B_EXTENSION)
                .and_then(|entry| entry.extension["url"].as_str())
                .map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_writes_the_commands_read() {
        let written = Kubeconfig::new("https://127.0.0.1:1", "PEM\n", "secret");
        let written = written.with_e2b("http://127.0.0.1:2");
        let text = written.to_yaml().unwrap();
        let target = Kubeconfig::parse(&text).unwrap().target().unwrap();
        assert_eq!(target.server, "https://127.0.0.1:1");
        assert_eq!(target.ca_pem, "PEM\n");
        assert_eq!(target.token, "secret");
        assert_eq!(target.namespace, "default");
        assert_eq!(target.e2b.as_deref(), Some("http://127.0.0.1:2"));
        assert!(!format!("{written:?}").contains("secret"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n";
        let Err(error) = Kubeconfig::parse(text).unwrap().target() else {
            panic!("it has no cluster");
        };
        assert_eq!(error.to_string(), "it has no cluster `b`");
    }
}
