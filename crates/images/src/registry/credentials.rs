//! Who we are to a registry.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;

use super::RegistryOptions;
use crate::error::{Doing as _, ImageError, Result};

/// A user and a password, or a token; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// A user and a password.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }

    /// The value of an `Authorization` header.
    pub(crate) fn basic(&self) -> String {
        let pair = format!("{}:{}", self.user, self.password);
        format!("Basic {}", STANDARD.encode(pair))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: String,
    username: String,
    password: String,
}

/// Which credentials a transfer uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// Those that are configured for the registry, or else Docker's.
    #[default]
    Configured,
    /// Those of a file in the format of Docker's `config.json`, which only its owner may read.
    Secret(PathBuf),
    /// These.
    Given(Credentials),
    /// None at all.
    Nobody,
}

impl Login {
    /// The credentials for a registry, if there are any. Files are read each time: people log in,
    /// and change passwords, while a server runs.
    pub(super) fn find(
        &self,
        options: &RegistryOptions,
        registry: &str,
    ) -> Result<Option<Credentials>> {
        match self {
            Self::Configured => {
                if let Some(found) = options.credentials.get(registry) {
                    return Ok(Some(found.clone()));
                }
                if let Some((user, file)) = options.password_files.get(registry) {
                    let password = read_secret(file)?;
                    return Ok(Some(Credentials::new(user, password.trim_end())));
                }
                match &options.docker_config {
                    Some(path) if path.exists() => in_docker_config(path, registry),
                    Some(_) | None => Ok(None),
                }
            }
            Self::Given(credentials) => Ok(Some(credentials.clone())),
            Self::Nobody => Ok(None),
            Self::Secret(path) => {
                read_secret(path)?;
                let found = in_docker_config(path, registry)?;
                let why = "it has no credentials for the registry: add them to its `auths`";
                found.map(Some).ok_or_else(|| secret(path, why))
            }
        }
    }
}

/// Its name only: whoever asked need not know where this host keeps its secrets.
fn secret(path: &Path, why: &'static str) -> ImageError {
    let name = path.file_name().unwrap_or(path.as_os_str());
    ImageError::Secret {
        name: name.to_string_lossy().into(),
        why,
    }
}

/// The text of a file that only its owner may read.
fn read_secret(path: &Path) -> Result<String> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(secret(
                path,
                "there is no such file: write it, with mode 0600",
            ));
        }
        other => other.doing(format!("look at {}", path.display()))?,
    };
    if found.mode() & 0o077 != 0 {
        let why = "others than its owner may read it: take that away with `chmod 600`";
        return Err(secret(path, why));
    }
    let text = fs::read(path).doing(format!("read {}", path.display()))?;
    String::from_utf8(text).map_err(|_| secret(path, "it is not a text"))
}

fn in_docker_config(path: &Path, registry: &str) -> Result<Option<Credentials>> {
    let text = fs::read(path).doing(format!("read {}", path.display()))?;
    // What is wrong with it is not said: the text may be a secret.
    let malformed = |why: &str| ImageError::malformed(path.display().to_string(), why);
    let config: DockerConfig =
        serde_json::from_slice(&text).map_err(|_| malformed("not Docker's configuration"))?;
    let host = |key: &str| {
        let key = key.trim_start_matches("https://");
        let key = key.trim_start_matches("http://");
        let key = key.split('/').next().unwrap_or_default();
        match key {
            "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
            other => other.to_owned(),
        }
    };
    let found = config
        .auths
        .into_iter()
        .find(|(key, _)| host(key) == registry);
    let Some((_, auth)) = found else {
        return Ok(None);
    };
    if !auth.username.is_empty() {
        return Ok(Some(Credentials::new(auth.username, auth.password)));
    }
    if auth.auth.is_empty() {
        // A credential helper has them.
        return Ok(None);
    }
    let pair = STANDARD
        .decode(auth.auth)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = pair.as_deref().and_then(|pair| pair.split_once(':'));
    let (user, password) =
        pair.ok_or_else(|| malformed("an `auth` is not base64 of user:password"))?;
    Ok(Some(Credentials::new(user, password)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> (tempfile::TempDir, RegistryOptions) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        kit::durable::write_file(&path, text.as_bytes(), 0o600).unwrap();
        let options = RegistryOptions {
            docker_config: Some(path),
            ..RegistryOptions::default()
        };
        (directory, options)
    }

    #[test]
    fn dockers_configuration_is_understood() {
        let auth = STANDARD.encode("me:se:cret");
        let (_directory, options) = options(&format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{auth}"}},
                "example.com:5000": {{"username": "a", "password": "b"}}, "helped.com": {{}}}}}}"#
        ));
        let found = |registry| Login::Configured.find(&options, registry).unwrap();
        assert_eq!(found("docker.io"), Some(Credentials::new("me", "se:cret")));
        assert_eq!(found("example.com:5000"), Some(Credentials::new("a", "b")));
        assert_eq!(found("helped.com"), None);
        assert_eq!(found("other.com"), None);
    }

    #[test]
    fn a_password_is_read_from_a_file_that_nobody_else_may_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let options = RegistryOptions {
            password_files: [("a.com".into(), ("me".into(), path.clone()))].into(),
            ..RegistryOptions::default()
        };
        let find = || Login::Configured.find(&options, "a.com");
        assert!(matches!(find(), Err(ImageError::Secret { .. })));
        kit::durable::write_file(&path, b"hunter2\n", 0o600).unwrap();
        assert_eq!(find().unwrap(), Some(Credentials::new("me", "hunter2")));
        kit::durable::write_file(&path, b"hunter2\n", 0o640).unwrap();
        let refused = find().unwrap_err();
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
        assert!(!refused.to_string().contains("hunter2"), "{refused}");
    }

    #[test]
    fn a_secret_that_is_named_must_be_there_and_know_the_registry() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("push");
        let login = Login::Secret(path.clone());
        let find = |registry| login.find(&RegistryOptions::default(), registry);
        assert!(matches!(find("a.com"), Err(ImageError::Secret { .. })));
        let text = br#"{"auths": {"a.com": {"username": "me", "password": "x"}}}"#;
        kit::durable::write_file(&path, text, 0o600).unwrap();
        assert_eq!(find("a.com").unwrap(), Some(Credentials::new("me", "x")));
        assert!(matches!(find("b.com"), Err(ImageError::Secret { .. })));
    }

    #[test]
    fn no_error_and_no_debug_text_shows_a_secret() {
        let (_directory, options) = options(r#"{"auths": {"a.com": {"auth": "hunter2!"}}"#);
        let error = Login::Configured.find(&options, "a.com").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
        let shown = format!("{:?}", Credentials::new("me", "hunter2"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
