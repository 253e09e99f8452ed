//! The kubeconfig: what a client must know of a server, in the file format of `kubectl`. The server
//! writes it, the commands read it.

use std::path::{Path, PathBuf};

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
    certificate_authority: Option<PathBuf>,
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

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key: Option<PathBuf>,
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
    pub(crate) who: Credentials,
    /// Where to look for objects.
    pub(crate) namespace: String,
    /// Where its E2B API is.
    pub(crate) e2b: Option<String>,
}

/// What shows a server who we are.
pub(crate) enum Credentials {
    /// A text that only we know.
    Token(String),
    /// A certificate that the server's authority signed, and its key.
    Certificate { chain_pem: String, key_pem: String },
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
                    certificate_authority: None,
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
                    ..User::default()
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

    /// The server of the current context. Files that it names are looked for from `directory`, where it
    /// is itself.
    pub(crate) fn target(&self, directory: &Path) -> anyhow::Result<Target> {
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
        let read = |data: &Option<String>, file: &Option<PathBuf>, what: &str| {
            pem(data.as_deref(), file.as_deref(), directory, what)
        };
        let ca_pem = read(
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
            "certificate-authority",
        )?
        .with_context(|| format!("cluster `{}` has no certificate-authority", context.cluster))?;
        let chain_pem = read(
            &user.client_certificate_data,
            &user.client_certificate,
            "client-certificate",
        )?;
        let key_pem = read(&user.client_key_data, &user.client_key, "client-key")?;
        let who = match (&user.token, chain_pem, key_pem) {
            (Some(token), _, _) => Credentials::Token(token.clone()),
            (None, Some(chain_pem), Some(key_pem)) => {
                Credentials::Certificate { chain_pem, key_pem }
            }
            (None, _, _) => bail!(
                "user `{}` has neither a token nor a client-certificate with its client-key; for one \
                 that logs in by a program, `kubectl create token` makes a token",
                context.user
            ),
        };
        Ok(Target {
            server: cluster.server.clone(),
            tls_name: cluster.tls_server_name.clone(),
            ca_pem,
            who,
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

/// What a kubeconfig holds itself, in base64, or names the file of.
fn pem(
    data: Option<&str>,
    file: Option<&Path>,
    directory: &Path,
    what: &str,
) -> anyhow::Result<Option<String>> {
    if let Some(data) = data {
        let bytes = BASE64_STANDARD.decode(data.trim()).ok();
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        return match text {
            Some(text) => Ok(Some(text)),
            None => bail!("its {what}-data is not PEM in base64"),
        };
    }
    let Some(file) = file else { return Ok(None) };
    let file = directory.join(file);
    std::fs::read_to_string(&file)
        .map(Some)
        .with_context(|| format!("read its {what} {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_writes_the_commands_read() {
        let written = Kubeconfig::new("https://127.0.0.1:1", "PEM\n", "secret");
        let written = written.with_e2b("http://127.0.0.1:2");
        let text = written.to_yaml().unwrap();
        let target = Kubeconfig::parse(&text)
            .unwrap()
            .target(Path::new("/"))
            .unwrap();
        assert_eq!(target.server, "https://127.0.0.1:1");
        assert_eq!(target.ca_pem, "PEM\n");
        assert!(matches!(target.who, Credentials::Token(token) if token == "secret"));
        assert_eq!(target.namespace, "default");
        assert_eq!(target.e2b.as_deref(), Some("http://127.0.0.1:2"));
        assert!(!format!("{written:?}").contains("secret"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let text = "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n";
        let Err(error) = Kubeconfig::parse(text).unwrap().target(Path::new("/")) else {
            panic!("it has no cluster");
        };
        assert_eq!(error.to_string(), "it has no cluster `b`");
    }

    #[test]
    fn a_certificate_is_read_from_the_file_or_from_where_it_points() {
        let directory = tempfile::tempdir().unwrap();
        kit::durable::write_file(&directory.path().join("key.pem"), b"KEY", 0o600).unwrap();
        let text = format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: b, user: c}}}}]\n\
             clusters: [{{name: b, cluster: {{server: 'https://h', certificate-authority-data: {0}}}}}]\n\
             users: [{{name: c, user: {{client-certificate-data: {0}, client-key: key.pem}}}}]\n",
            BASE64_STANDARD.encode("PEM")
        );
        let target = Kubeconfig::parse(&text).unwrap().target(directory.path());
        let Credentials::Certificate { chain_pem, key_pem } = target.unwrap().who else {
            panic!("there is no token");
        };
        assert_eq!((&*chain_pem, &*key_pem), ("PEM", "KEY"));
        let elsewhere = Kubeconfig::parse(&text)
            .unwrap()
            .target(Path::new("/nowhere"));
        let Err(error) = elsewhere else {
            panic!("there is no key");
        };
        assert_eq!(error.to_string(), "read its client-key /nowhere/key.pem");
    }
}
